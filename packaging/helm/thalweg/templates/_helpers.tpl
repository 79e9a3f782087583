{{- define "thalweg.name" -}}
{{- if contains "thalweg" .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-thalweg" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "thalweg.selector" -}}
app.kubernetes.io/name: thalweg
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "thalweg.labels" -}}
{{ include "thalweg.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "thalweg.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Host name of the node with an index, for other nodes. */}}
{{- define "thalweg.host" -}}
{{ include "thalweg.name" .root }}-{{ .index }}.{{ include "thalweg.name" .root }}-nodes.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{/* Addresses of the native doors of all nodes. */}}
{{- define "thalweg.servers" -}}
{{- $scheme := ternary "tcp" "tls" .Values.insecure -}}
{{- $root := . -}}
{{- $servers := list -}}
{{- range $index := until (int .Values.replicas) -}}
{{- $servers = append $servers (printf "%s://%s:7400" $scheme (include "thalweg.host" (dict "root" $root "index" $index))) -}}
{{- end -}}
{{ join "," $servers }}
{{- end -}}

{{- define "thalweg.container" -}}
image: {{ include "thalweg.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: data
    mountPath: /var/lib/thalweg
  - name: config
    mountPath: /etc/thalweg/thalweg.toml
    subPath: thalweg.toml
    readOnly: true
  {{- if .Values.tls.secretName }}
  - name: tls
    mountPath: /etc/thalweg/tls
    readOnly: true
  {{- end }}
{{- end -}}

{{- define "thalweg.env" -}}
- name: THALWEG_CONFIG
  value: /etc/thalweg/thalweg.toml
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if .Values.admin.secretName }}
- name: ADMIN_USER
  valueFrom:
    secretKeyRef:
      name: {{ .Values.admin.secretName }}
      key: user
- name: ADMIN_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.admin.secretName }}
      key: password
{{- end }}
{{- end -}}
