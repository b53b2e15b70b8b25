{{/* dict "root" $ "name" MODEL "router" VALUES: a router's settings in addition to the common ones */}}
{{- define "baton.router.env" -}}
{{- if .root.Values.catalogue.enabled }}
- name: BATON_MODELS
  value: {{ include "baton.router.catalogue" . | quote }}
{{- else }}
- name: BATON_MODEL
  value: {{ include "baton.model.path" . }}
- name: BATON_SERVED_MODEL_NAME
  value: {{ include "baton.model.served" . | quote }}
{{- end }}
- name: BATON_PORT
  value: "8000"
- name: BATON_GRPC_PORT
  value: "50051"
- name: BATON_DRAIN_GRACE_S
  value: {{ int64 .router.drainGraceSeconds | quote }}
{{- if .root.Values.auth.apiKeys.enabled }}
- name: BATON_API_KEYS
  value: /etc/baton/keys/keys.toml
{{- else }}
- name: BATON_INSECURE_BIND
  value: "true"
{{- end }}
{{- if and .root.Values.tls.enabled .root.Values.tls.requireClientCertificates }}
- name: BATON_TLS_CLIENT_CERTS
  value: "true"
{{- end }}
{{- include "baton.settings" .router.settings }}
{{- with .router.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* dict "root" $ "name" ROUTER -> its models as JSON: names, folders, and the settings of each one's `router` */}}
{{- define "baton.router.catalogue" -}}
{{- $root := .root -}}
{{- $tables := list -}}
{{- range $name := include "baton.router.models" . | fromYamlArray -}}
{{- $model := index $root.Values.models $name -}}
{{- $own := ($model.router | default dict).settings | default dict -}}
{{- $path := include "baton.model.path" (dict "name" $name "base" (printf "/catalogue/%s" $name)) -}}
{{- $table := dict "name" (include "baton.model.served" (dict "root" $root "name" $name)) "path" $path -}}
{{- $tables = append $tables (merge $table $own) -}}
{{- end -}}
{{- $tables | toJson -}}
{{- end -}}
