{{/* Allowed targets of routers and workers: the directory, name servers, and your own additions. */}}
{{- define "baton.egress.common" -}}
{{- if .Values.redis.internal }}
- ports:
    - {port: 6379}
  to:
    - {{- include "baton.peerSelector" (dict "root" . "component" "redis") | nindent 6 }}
{{- else }}
- ports:
    - {port: {{ int64 .Values.redis.external.port }}}
{{- end }}
{{- with .Values.networkPolicy.dns }}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
  to:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Each rank of a worker has a port. UCX, used by the connector nixl, chooses its ports itself, and so do ranks on several hosts. */}}
{{- define "baton.worker.ports" -}}
{{- if not (or .Values.networkPolicy.allPortsBetweenWorkers (include "baton.anyHosts" .)) -}}
ports:
  - {port: 50061}
  {{- range include "baton.allTransferPorts" . | fromYamlArray }}
  - {port: {{ int64 . }}}
  {{- end }}
{{- end -}}
{{- end -}}
