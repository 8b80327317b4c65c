{{- define "gputopo.policyText" -}}
{{- .Values.scheduler.policy | default (ternary (.Files.Get "files/quality-and-cost-policy.yaml") "" .Values.scheduler.qualityAndCost) }}
{{- end }}

{{- /* Gates, with the scheduler names of scheduler.qualityAndCost. */}}
{{- define "gputopo.gating" -}}
{{- if .root.Values.scheduler.qualityAndCost }}
{{- .root.Files.Get .file | replace "'gputopo-scheduler'" "'gputopo-scheduler', 'gpu-aware-scheduler', 'cost-optimized-scheduler'" }}
{{- else }}
{{- .root.Files.Get .file }}
{{- end }}
{{- end }}

{{- define "gputopo.policyMap" -}}
{{- if (include "gputopo.policyText" .) }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: gputopo-policy
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "gputopo.labelsOf" (list . "gputopo-scheduler") | nindent 4 }}
data:
  policy.yaml: |
    {{- include "gputopo.policyText" . | trim | nindent 4 }}
{{- end }}
{{- end }}

{{- /* Mounted whole, not by subPath: what is changed reaches the running extender within a minute or two. */}}
{{- define "gputopo.policyMount" -}}
- name: policy
  mountPath: /etc/gputopo/policy
  readOnly: true
{{- end }}

{{- define "gputopo.policyVolume" -}}
- name: policy
  configMap:
    name: gputopo-policy
{{- end }}
