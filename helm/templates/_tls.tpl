{{/* dict "root" $ "role" ROLE: names that a certificate must have. Workers are called by address and checked by the common name. */}}
{{- define "baton.tls.names" -}}
- localhost
- {{ .root.Values.tls.serverName }}
{{- $services := list -}}
{{- if eq .role "redis" -}}
{{- $services = list (include "baton.redis.name" .root) -}}
{{- else if eq .role "router" -}}
{{- range $name := include "baton.routers" .root | fromYamlArray -}}
{{- $services = append $services (include "baton.router.name" (dict "root" $.root "name" $name)) -}}
{{- end -}}
{{- end -}}
{{- $namespace := .root.Release.Namespace -}}
{{- range $services }}
- {{ . }}
- {{ . }}.{{ $namespace }}
- {{ . }}.{{ $namespace }}.svc
- {{ . }}.{{ $namespace }}.svc.cluster.local
{{- end }}
{{- end -}}
