{{/*
dict "root" $ "name" POOL "pool" VALUES "labels" ARGUMENTS OF baton.labels "env" TEXT: the pods of a pool, for any kind of workload.
`group`: of which of several workloads of the pool; `env`, `args`: variables and words beside those of every pool.
*/}}
{{- define "baton.pool.template" -}}
{{- $root := .root -}}
{{- $at := dict "root" .root "name" .name -}}
{{- $pool := .pool -}}
{{- $labels := .labels -}}
{{- $model := dict "root" .root "name" $pool.model -}}
metadata:
  labels:
    {{- include "baton.labels" $labels | nindent 4 }}
    {{- with .group }}
    baton.dev/group: {{ . | quote }}
    {{- end }}
    {{- with $pool.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $pool.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "baton.podCommon" $root | nindent 2 }}
  {{- include "baton.placement" (dict "values" $pool "selector" (include "baton.selectorLabels" $labels)) | nindent 2 }}
  # SIGTERM makes a worker drain within its grace period. Routers are notified at once, so there is no preStop.
  terminationGracePeriodSeconds: {{ add (int64 $pool.drainGraceSeconds) 10 }}
  {{- with include "baton.model.initContainers" $model }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: worker
      image: {{ include "baton.image" (dict "root" $root "image" $root.Values.image.worker) }}
      imagePullPolicy: {{ $root.Values.image.worker.pullPolicy }}
      args: {{ concat (list "serve" $pool.role) (.args | default list) | toJson }}
      env:
        {{- include "baton.clusterEnv" $at | nindent 8 }}
        {{- include "baton.pool.env" (dict "root" $root "pool" $pool) | nindent 8 }}
        {{- with .env }}
        {{- . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: 50061}
        {{- range $rank, $port := include "baton.transferPorts" (include "baton.pool.ranks" $pool) | fromYamlArray }}
        - {name: transfer{{ if $rank }}-{{ $rank }}{{ end }}, containerPort: {{ int64 $port }}}
        {{- end }}
        - {name: metrics, containerPort: 9400}
      {{- include "baton.worker.probes" (dict "root" $root "startupSeconds" $pool.startupSeconds "hosts" (include "baton.pool.hosts" $pool | int)) | nindent 6 }}
      resources:
        {{- include "baton.pool.resources" $pool | nindent 8 }}
      securityContext:
        {{- include "baton.containerSecurityContext" $root | nindent 8 }}
      volumeMounts:
        {{- include "baton.clusterMounts" $at | nindent 8 }}
        {{- include "baton.model.mount" $model | nindent 8 }}
        - {name: run, mountPath: /run/baton}
        - {name: cache, mountPath: /var/cache/baton}
        - {name: shm, mountPath: /dev/shm}
        {{- with $pool.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "baton.clusterVolumes" (dict "root" $root "role" $pool.role) | nindent 4 }}
    {{- include "baton.model.volume" $model | nindent 4 }}
    - name: run
      emptyDir: {medium: Memory, sizeLimit: 16Mi}
    - name: cache
      {{- if $pool.cacheClaim }}
      persistentVolumeClaim: {claimName: {{ $pool.cacheClaim }}}
      {{- else }}
      emptyDir: {sizeLimit: {{ $pool.cacheSizeLimit }}}
      {{- end }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $pool.sharedMemorySizeLimit }}}
    {{- with $pool.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
