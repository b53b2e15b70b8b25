{{/* dict "root" $ "role" "client": the common part of both containers; ends with the list of variables */}}
{{- define "baton.test.rest" -}}
resources:
  requests: {cpu: 50m, memory: 128Mi}
  limits: {memory: 512Mi}
securityContext:
  {{- include "baton.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if .root.Values.tls.enabled }}
  - {name: tls, mountPath: /etc/baton/tls, readOnly: true}
  {{- end }}
env:
  - name: NO_COLOR
    value: "1"
  {{- if .root.Values.auth.apiKeys.enabled }}
  - name: BATON_API_KEY
    valueFrom:
      secretKeyRef:
        name: {{ include "baton.clientKeySecret" .root }}
        key: client-key
  {{- end }}
  {{- if .root.Values.tls.enabled }}
  - name: BATON_TLS_CA
    value: /etc/baton/tls/ca.crt
  - name: BATON_TLS_CERT
    value: /etc/baton/tls/tls.crt
  - name: BATON_TLS_KEY
    value: /etc/baton/tls/tls.key
  {{- end }}
{{- end -}}
