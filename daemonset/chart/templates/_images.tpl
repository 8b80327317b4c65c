{{- define "gputopo.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Of the version of the API server, without what a provider adds to it ("v1.36.3-gke.1000"). */}}
{{- define "gputopo.kubeScheduler" -}}
{{- $version := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{ .Values.scheduler.kubeScheduler.repository }}:{{ .Values.scheduler.kubeScheduler.tag | default $version }}
{{- end }}

{{- define "gputopo.schedulerConfig" -}}
{{ .Values.scheduler.config | default (.Files.Get "files/scheduler-config.yaml") | trim }}
{{- end }}
