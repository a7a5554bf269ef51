{{- define "fencegate.labels" -}}
app.kubernetes.io/name: fencegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fencegate.security" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fencegate.container" -}}
name: fencegate
image: {{ .Values.image }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
{{- if .Values.applications }}
# As a sidecar, the proxy starts before the applications and stops after them.
restartPolicy: Always
{{- end }}
env:
  {{- if .Values.applications }}
  - {name: FENCEGATE_LISTEN, value: "127.0.0.1:6432"}
  {{- end }}
  - {name: FENCEGATE_UPSTREAM, value: {{ .Values.upstream | quote }}}
  - name: FENCEGATE_CONTROL
    valueFrom: {secretKeyRef: {name: {{ .Values.controlSecret }}, key: control}}
  - {name: FENCEGATE_SHUTDOWN_TIMEOUT, value: "{{ .Values.shutdownSeconds }}s"}
  - {name: FENCEGATE_LOG_FORMAT, value: json}
  {{- with .Values.watchFiles }}
  - {name: FENCEGATE_WATCH_FILES, value: {{ . | quote }}}
  {{- end }}
  {{- if .Values.tlsSecret }}
  - {name: FENCEGATE_TLS_CERT, value: /etc/fencegate/tls/tls.crt}
  - {name: FENCEGATE_TLS_KEY, value: /etc/fencegate/tls/tls.key}
  {{- end }}
  {{- with .Values.service.proxyProtocolFrom }}
  - {name: FENCEGATE_PROXY_PROTOCOL_FROM, value: {{ . | quote }}}
  {{- end }}
  {{- range $key, $value := .Values.settings }}
  - {name: FENCEGATE_{{ upper $key }}, value: {{ $value | toString | quote }}}
  {{- end }}
ports:
  {{- if not .Values.applications }}
  - {name: postgres, containerPort: 6432}
  {{- end }}
  - {name: http, containerPort: 9432}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- if and (not .Values.applications) .Values.drainSeconds }}
# The pod leaves the service and receives no new connections, while its clients reconnect elsewhere. Then SIGTERM ends
# idle sessions between transactions.
lifecycle:
  preStop: {sleep: {seconds: {{ .Values.drainSeconds }}}}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- include "fencegate.security" . | nindent 2 }}
volumeMounts:
  - {name: policies, mountPath: /etc/fencegate/policies, readOnly: true}
  {{- if .Values.tlsSecret }}
  - {name: tls, mountPath: /etc/fencegate/tls, readOnly: true}
  {{- end }}
{{- end }}
