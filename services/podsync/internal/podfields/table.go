package podfields

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// rule reports whether a value that is set is supported; a nil rule supports every value.
type rule func(v reflect.Value) bool

// notTheNodes are for the scheduler, the controllers and the handlers of admission: nothing else on
// the node acts on them. What is for Windows alone means nothing here, as to a kubelet on Linux.
var notTheNodes = merge(
	supported("spec",
		"affinity", "nodeName", "nodeSelector", "preemptionPolicy", "priority", "priorityClassName",
		"evictionResponders", "os", "schedulerName", "schedulingGates", "schedulingGroup", "tolerations",
		"topologySpreadConstraints",
	),
	supported("spec.securityContext", "windowsOptions"),
	supported("spec.containers.securityContext", "windowsOptions"),
)

// rules is the table of supported fields: a path covers all that is below it.
var rules = merge(
	notTheNodes,
	supported("spec",
		"automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks",
		"hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostname", "hostnameOverride", "imagePullSecrets",
		"overhead",
		"activeDeadlineSeconds", "readinessGates", "restartPolicy", "runtimeClassName", "serviceAccount",
		"serviceAccountName", "setHostnameAsFQDN",
		"shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds",
	),
	supported("spec.securityContext",
		"appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser",
		"seLinuxOptions", "seLinuxChangePolicy", "seccompProfile", "supplementalGroups", "supplementalGroupsPolicy",
		"sysctls",
	),
	map[string]rule{
		"spec.hostUsers":           only(true),
		"spec.volumes.name":        nil,
		"spec.volumes.projected":   builtProjection,
		"spec.volumes.configMap":   builtConfigMap,
		"spec.volumes.secret":      builtSecret,
		"spec.volumes.downwardAPI": builtDownward,
		"spec.volumes.hostPath":    nil,
		"spec.volumes.image":       nil,
		"spec.volumes.csi":         nil,

		"spec.volumes.persistentVolumeClaim": nil,
		"spec.volumes.ephemeral":             nil,
		"spec.volumes.emptyDir":              builtEmptyDir,
		"spec.containers.env.name":           nil,
		"spec.containers.env.value":          nil,
		"spec.resources":                     builtResources,
		"spec.containers.resources":          builtResources,
	},
	supported("spec.containers",
		"name", "image", "command", "args", "workingDir", "ports", "envFrom", "restartPolicy", "restartPolicyRules",
		"imagePullPolicy", "resizePolicy", "stdin", "stdinOnce", "tty",
		"livenessProbe", "readinessProbe", "startupProbe",
		"targetContainerName", "terminationMessagePath", "terminationMessagePolicy",
	),
	// A hook with tcpSocket fails, as with the kubelet: the API keeps it for old objects.
	supported("spec.containers.lifecycle", "postStart", "preStop"),
	supported("spec.containers.securityContext",
		"allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount",
		"readOnlyRootFilesystem",
		"runAsGroup", "runAsNonRoot", "runAsUser", "seLinuxOptions", "seccompProfile",
	),
	supported("spec.containers.env.valueFrom", "configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef",
		"secretKeyRef"),
	supported("spec.containers.volumeDevices", "name", "devicePath"),
	supported("spec.containers.volumeMounts", "name", "mountPath", "readOnly", "mountPropagation", "recursiveReadOnly",
		"subPath", "subPathExpr"),
)

func supported(under string, fields ...string) map[string]rule {
	m := make(map[string]rule, len(fields))
	for _, f := range fields {
		m[under+"."+f] = nil
	}
	return m
}

func merge(tables ...map[string]rule) map[string]rule {
	all := map[string]rule{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

// only supports a pointer to this one value.
func only[T comparable](want T) rule {
	return func(v reflect.Value) bool {
		got, ok := v.Interface().(*T)
		return ok && *got == want
	}
}

// builtProjection leaves out what needs managers of its own, and the owners of single
// files, whose gate is off.
func builtProjection(v reflect.Value) bool {
	volume := v.Interface().(*v1.ProjectedVolumeSource)
	if volume.DefaultUser != nil {
		return false
	}
	for i := range volume.Sources {
		if !builtSource(&volume.Sources[i]) {
			return false
		}
	}
	return true
}

func builtSource(s *v1.VolumeProjection) bool {
	switch {
	case s.ClusterTrustBundle != nil, s.PodCertificate != nil:
		return false
	case s.ServiceAccountToken != nil:
		return s.ServiceAccountToken.User == nil
	case s.ConfigMap != nil:
		return ownerless(s.ConfigMap.Items)
	case s.Secret != nil:
		return ownerless(s.Secret.Items)
	case s.DownwardAPI != nil:
		return ownerlessDownward(s.DownwardAPI.Items)
	}
	return true
}

func builtConfigMap(v reflect.Value) bool {
	volume := v.Interface().(*v1.ConfigMapVolumeSource)
	return volume.DefaultUser == nil && ownerless(volume.Items)
}

func builtSecret(v reflect.Value) bool {
	volume := v.Interface().(*v1.SecretVolumeSource)
	return volume.DefaultUser == nil && ownerless(volume.Items)
}

func builtDownward(v reflect.Value) bool {
	volume := v.Interface().(*v1.DownwardAPIVolumeSource)
	return volume.DefaultUser == nil && ownerlessDownward(volume.Items)
}

func ownerless(items []v1.KeyToPath) bool {
	return !slices.ContainsFunc(items, func(item v1.KeyToPath) bool { return item.User != nil })
}

func ownerlessDownward(items []v1.DownwardAPIVolumeFile) bool {
	return !slices.ContainsFunc(items, func(item v1.DownwardAPIVolumeFile) bool { return item.User != nil })
}

// builtEmptyDir leaves out the mode, whose gate is off. evictor enforces the limit of a volume on disk: a memory
// medium's is the size of its file system.
func builtEmptyDir(v reflect.Value) bool { return v.Interface().(*v1.EmptyDirVolumeSource).Mode == nil }

// builtResources supports what a cgroup can enforce, and storage, whose limits evictor enforces. Extended resources and
// claims need the device managers.
func builtResources(v reflect.Value) bool {
	r, ok := v.Interface().(v1.ResourceRequirements)
	if !ok {
		r = *v.Interface().(*v1.ResourceRequirements) // those of the pod as a whole
	}
	if len(r.Claims) > 0 {
		return false
	}
	for _, list := range []v1.ResourceList{r.Limits, r.Requests} {
		for name := range list {
			switch name {
			case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
			default:
				if !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
					return false
				}
			}
		}
	}
	return true
}
