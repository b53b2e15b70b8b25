{{/* Settings as variables: max_num_seqs: 8 becomes BATON_MAX_NUM_SEQS="8". */}}

{{/* A number without an exponent: YAML makes every number a float, and 536870912 would print as 5.36870912e+08. */}}
{{- define "baton.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%d" (int64 .) -}}
{{- else if kindIs "slice" . -}}
{{- join "," . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* A dict of settings -> list of variables */}}
{{- define "baton.settings" -}}
{{- range $name, $value := . }}
- name: BATON_{{ upper $name }}
  value: {{ include "baton.text" $value | quote }}
{{- end }}
{{- end -}}

{{/* dict "root" $: settings of every process of the cluster */}}
{{- define "baton.clusterEnv" -}}
{{- $root := .root -}}
- name: BATON_HOST
  value: {{ $root.Values.listenHost | quote }}
- name: BATON_CLUSTER_TOKEN
  value: /etc/baton/token/cluster-token
- name: BATON_REDIS_URL
{{- if $root.Values.redis.internal }}
  value: {{ include "baton.redis.url" $root | quote }}
- name: BATON_REDIS_PASSWORD_FILE
  value: /etc/baton/redis/password
{{- else if $root.Values.redis.external.existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ $root.Values.redis.external.existingSecret }}
      key: url
{{- else }}
  value: {{ required "redis.external.url or redis.external.existingSecret is required when redis.internal is false" $root.Values.redis.external.url | quote }}
{{- end }}
{{- if $root.Values.tls.enabled }}
- name: BATON_TLS_CERT
  value: /etc/baton/tls/tls.crt
- name: BATON_TLS_KEY
  value: /etc/baton/tls/tls.key
- name: BATON_TLS_CA
  value: /etc/baton/tls/ca.crt
- name: BATON_TLS_SERVER_NAME
  value: {{ $root.Values.tls.serverName | quote }}
{{- end }}
{{- end -}}

{{- define "baton.redis.url" -}}
{{- $address := printf "baton@%s:6379/0" (include "baton.redis.name" .) -}}
{{- if .Values.tls.enabled -}}
rediss://{{ $address }}?ssl_ca_certs=/etc/baton/tls/ca.crt&ssl_certfile=/etc/baton/tls/tls.crt&ssl_keyfile=/etc/baton/tls/tls.key
{{- else -}}
redis://{{ $address }}
{{- end -}}
{{- end -}}
