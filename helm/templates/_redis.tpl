{{- define "baton.redis.args" -}}
- redis-server
- --dir
- /data
- --save
- ""
- --appendonly
- "no"
- --maxmemory
- {{ .Values.redis.maxmemory | quote }}
- --maxmemory-policy
- noeviction
- --aclfile
- /etc/redis/users.acl
{{- if .Values.tls.enabled }}
- --port
- "0"
- --tls-port
- "6379"
- --tls-cert-file
- /tls/tls.crt
- --tls-key-file
- /tls/tls.key
- --tls-ca-cert-file
- /tls/ca.crt
{{- end }}
{{- end -}}

{{- define "baton.redis.ping" -}}
exec:
  command:
    - redis-cli
    - --no-auth-warning
    - --user
    - baton
    {{- if .Values.tls.enabled }}
    - --tls
    - --cacert
    - /tls/ca.crt
    - --cert
    - /tls/tls.crt
    - --key
    - /tls/tls.key
    - -h
    - localhost
    {{- end }}
    - ping
{{- end -}}
