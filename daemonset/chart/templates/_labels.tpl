{{- define "gputopo.labels" -}}
{{- include "gputopo.labelsOf" (list . "gputopo-agent") }}
{{- end }}

{{- /* Of an object of another part: (list . "gputopo-scheduler") */}}
{{- define "gputopo.labelsOf" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: gputopo
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{- /* A file of alerts; with a URL, runbook_url links to the runbooks there: (list FILE URL) */}}
{{- define "gputopo.alertRules" -}}
{{- if index . 1 -}}
{{- index . 0 | replace "runbook: docs/runbooks.md#" (printf "runbook_url: %s#" (index . 1)) -}}
{{- else -}}
{{- index . 0 -}}
{{- end -}}
{{- end }}
