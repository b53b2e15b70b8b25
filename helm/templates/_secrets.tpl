{{/* Names of secrets, existing or made here, and the content of those made here. */}}

{{- define "baton.tokenSecret" -}}
{{- default (printf "%s-cluster-token" (include "baton.fullname" .)) .Values.auth.clusterToken.existingSecret -}}
{{- end -}}

{{- define "baton.keysSecret" -}}
{{- default (printf "%s-api-keys" (include "baton.fullname" .)) .Values.auth.apiKeys.existingSecret -}}
{{- end -}}

{{/* A tenant's key as plain text: for the test, and for Prometheus. */}}
{{- define "baton.clientKeySecret" -}}
{{- default (include "baton.keysSecret" .) .Values.auth.apiKeys.clientKeySecret -}}
{{- end -}}

{{- define "baton.operatorKeySecret" -}}
{{- default (include "baton.keysSecret" .) .Values.auth.apiKeys.operatorKeySecret -}}
{{- end -}}

{{- define "baton.redisSecret" -}}
{{- default (include "baton.redis.name" .) .Values.redis.existingSecret -}}
{{- end -}}

{{/* dict "root" $ "role" ROLE */}}
{{- define "baton.tlsSecret" -}}
{{- default (printf "%s-%s-tls" (include "baton.fullname" .root) .role) (index .root.Values.tls.existingSecrets .role) -}}
{{- end -}}

{{/* dict "root" $ "name" SECRET: data of the secret in the cluster, or nothing. An upgrade keeps the secrets of the install. */}}
{{- define "baton.keptData" -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- with $found }}{{ toYaml .data }}{{ end -}}
{{- end -}}

{{/* An API key: bt-ID-SECRET. */}}
{{- define "baton.newApiKey" -}}
bt-{{ randAlphaNum 40 | sha256sum | trunc 16 }}-{{ randAlphaNum 43 }}
{{- end -}}

{{/* dict "client" KEY "operator" KEY: the file of tenants, which has only the keys' hashes */}}
{{- define "baton.keysFile" -}}
salt_secret = "{{ randAlphaNum 64 | sha256sum }}"

[[tenants]]
name = "default"
[[tenants.keys]]
id = "{{ index (splitList "-" .client) 1 }}"
sha256 = "{{ .client | sha256sum }}"

[[tenants]]
name = "operator"
operator = true
[[tenants.keys]]
id = "{{ index (splitList "-" .operator) 1 }}"
sha256 = "{{ .operator | sha256sum }}"
{{- end -}}
