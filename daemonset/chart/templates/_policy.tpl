{{- define "gputopo.policyMap" -}}
{{- if .Values.scheduler.policy }}
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
    {{- .Values.scheduler.policy | trim | nindent 4 }}
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
