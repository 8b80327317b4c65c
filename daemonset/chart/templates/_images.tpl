{{- define "gputopo.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Of the version of the API server, without what a provider adds to it ("v1.36.3-gke.1000"). */}}
{{- define "gputopo.kubeScheduler" -}}
{{- $version := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- with .Values.scheduler.kubeScheduler -}}
{{- $tag := .tag | default $version -}}
{{- /* A mirror may hold one platform of an image only, under another digest. */}}
{{- $known := eq .repository "registry.k8s.io/kube-scheduler" | ternary ($.Files.Get "files/kube-scheduler-digests.yaml" | fromYaml) dict -}}
{{- $digest := .digest | default (get $known $tag) -}}
{{ .repository }}:{{ $tag }}{{ with $digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "gputopo.schedulerConfig" -}}
{{ .Values.scheduler.config | default (.Files.Get (ternary "files/quality-and-cost-config.yaml" "files/scheduler-config.yaml" .Values.scheduler.qualityAndCost)) | trim }}
{{- end }}
