{{/* Requirements of Pod Security "restricted", and the common parts of all pods. */}}

{{/* dict "user" UID "group" GID "fsGroup" GID */}}
{{- define "baton.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ int64 .user }}
runAsGroup: {{ int64 .group }}
fsGroup: {{ int64 .fsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "baton.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* dict "root" $. Variables that Kubernetes makes of a Service called "baton" would be read as settings: BATON_PORT=tcp://… */}}
{{- define "baton.podIdentity" -}}
serviceAccountName: {{ include "baton.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "baton.podCommon" -}}
{{- $security := .Values.podSecurity -}}
{{ include "baton.podIdentity" (dict "root" .) }}
securityContext:
  {{- include "baton.podSecurityContext" (dict "user" $security.runAsUser "group" $security.runAsGroup "fsGroup" $security.fsGroup) | nindent 2 }}
{{- end -}}

{{/* dict "values" ROUTER-OR-POOL "selector" LABELS: the nodes it may run on. Without your own constraints, replicas spread over hosts. */}}
{{- define "baton.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- .selector | nindent 8 }}
{{- end }}
{{- end -}}

{{/* dict "root" $ "role" ROLE: volumes with the secrets of the cluster's processes */}}
{{- define "baton.clusterVolumes" -}}
- name: tmp
  emptyDir: {}
- name: token
  secret:
    secretName: {{ include "baton.tokenSecret" .root }}
    defaultMode: 0440
    items:
      - {key: cluster-token, path: cluster-token}
{{- if .root.Values.redis.internal }}
- name: redis
  secret:
    secretName: {{ include "baton.redisSecret" .root }}
    defaultMode: 0440
    items:
      - {key: password, path: password}
{{- end }}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "baton.tlsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "baton.clusterMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: token, mountPath: /etc/baton/token, readOnly: true}
{{- if .root.Values.redis.internal }}
- {name: redis, mountPath: /etc/baton/redis, readOnly: true}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/baton/tls, readOnly: true}
{{- end }}
{{- end -}}
