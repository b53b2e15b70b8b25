{{/*
Whether a process serves. Kubelets have gRPC probes from 1.24 on, and without TLS; elsewhere they ask a worker's plain port.
A probe that starts a process would take a third of a second of CPU each time.
*/}}

{{/* dict "root" $ "hosts" N: pods that only have ranks of a worker have the plain port alone */}}
{{- define "baton.worker.check" -}}
{{- if and (eq (int .hosts) 1) (not .root.Values.tls.enabled) (semverCompare ">=1.24.0-0" .root.Capabilities.KubeVersion.Version) -}}
grpc:
  port: 50061
{{- else -}}
httpGet:
  path: /health
  port: metrics
{{- end -}}
{{- end -}}

{{/* dict "root" $ "startupSeconds" N "hosts" N. The time for loading a model is unknown; a worker that is stuck for five minutes is restarted. */}}
{{- define "baton.worker.probes" -}}
startupProbe:
  {{- include "baton.worker.check" . | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: {{ div (add (int64 .startupSeconds) 4) 5 }}
readinessProbe:
  {{- include "baton.worker.check" . | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 3
livenessProbe:
  {{- include "baton.worker.check" . | nindent 2 }}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 10
{{- end -}}

{{/* dict "root" $ "path" PATH. Kubelets show no certificate: if one is required, `baton probe` shows the router's own. */}}
{{- define "baton.router.check" -}}
{{- if and .root.Values.tls.enabled .root.Values.tls.requireClientCertificates -}}
exec:
  command: [/opt/baton/baton, probe, router]
{{- else -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if .root.Values.tls.enabled }}
  scheme: HTTPS
  {{- end }}
{{- end -}}
{{- end -}}

{{/* dict "root" $. A router without workers is alive, but not ready. A probe that starts a process runs less often. */}}
{{- define "baton.router.probes" -}}
readinessProbe:
  {{- include "baton.router.check" (dict "root" .root "path" "/ready") | nindent 2 }}
  periodSeconds: {{ ternary 10 3 (and .root.Values.tls.enabled .root.Values.tls.requireClientCertificates) }}
  timeoutSeconds: 5
  failureThreshold: 2
{{- if not (and .root.Values.tls.enabled .root.Values.tls.requireClientCertificates) }}
livenessProbe:
  {{- include "baton.router.check" (dict "root" .root "path" "/live") | nindent 2 }}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
{{- end -}}
