package fields

import (
	"fmt"
	"maps"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// rule returns what of a value that is set is not supported, as the rest of its path; a nil rule supports every value.
type rule func(v reflect.Value) []string

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
		"hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname", "hostnameOverride", "imagePullSecrets",
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
		"spec.containers.env.name":  nil,
		"spec.containers.env.value": nil,
		"spec.resources":            builtResources,
		"spec.containers.resources": builtResources,
	},
	supported("spec.volumes", "name", "csi", "ephemeral", "hostPath", "image", "nfs", "persistentVolumeClaim"),
	// evictor enforces the limit of a volume on disk: a memory medium's is the size of its file system.
	supported("spec.volumes.emptyDir", "medium", "sizeLimit"),
	supported("spec.volumes.configMap", "name", "defaultMode", "optional"),
	supported("spec.volumes.secret", "secretName", "defaultMode", "optional"),
	supported("spec.volumes.downwardAPI", "defaultMode"),
	supported("spec.volumes.projected", "defaultMode"),
	supported("spec.volumes.projected.sources.configMap", "name", "optional"),
	supported("spec.volumes.projected.sources.secret", "name", "optional"),
	supported("spec.volumes.projected.sources.serviceAccountToken", "audience", "expirationSeconds", "path"),
	supported("spec.volumes.projected.sources.clusterTrustBundle", "name", "signerName", "labelSelector", "optional",
		"path"),
	supported("spec.volumes.projected.sources.podCertificate", "signerName", "keyType", "maxExpirationSeconds",
		"credentialBundlePath", "keyPath", "certificateChainPath", "userAnnotations"),
	files("key", "mode", "path")("spec.volumes.configMap", "spec.volumes.secret",
		"spec.volumes.projected.sources.configMap", "spec.volumes.projected.sources.secret"),
	files("path", "mode", "fieldRef", "resourceFieldRef")("spec.volumes.downwardAPI",
		"spec.volumes.projected.sources.downwardAPI"),
	supported("spec.containers",
		"name", "image", "command", "args", "workingDir", "ports", "envFrom", "restartPolicy", "restartPolicyRules",
		"imagePullPolicy", "resizePolicy", "stdin", "stdinOnce", "tty",
		"livenessProbe", "readinessProbe", "startupProbe",
		"targetContainerName", "terminationMessagePath", "terminationMessagePolicy",
	),
	// A hook with tcpSocket fails, as under the kubelet: the API keeps it for old objects.
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

// files are the fields of the items of volumes that are made of files.
func files(fields ...string) func(under ...string) map[string]rule {
	return func(under ...string) map[string]rule {
		m := map[string]rule{}
		for _, volume := range under {
			maps.Copy(m, supported(volume+".items", fields...))
		}
		return m
	}
}

func merge(tables ...map[string]rule) map[string]rule {
	all := map[string]rule{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

// builtResources supports what a cgroup can enforce, storage, whose limits evictor enforces, and extended resources,
// which device plugins offer. Claims are not supported. A resource is named once: the API sets a request to its limit.
func builtResources(v reflect.Value) (refused []string) {
	r, ofContainer := v.Interface().(v1.ResourceRequirements)
	if !ofContainer {
		r = *v.Interface().(*v1.ResourceRequirements) // those of the pod as a whole, which has no devices
	}
	built := func(name v1.ResourceName) bool {
		return builtResource(name) || ofContainer && podutil.IsExtended(name)
	}
	if len(r.Claims) > 0 {
		refused = append(refused, ".claims")
	}
	for name := range r.Limits {
		if !built(name) {
			refused = append(refused, fmt.Sprintf(".limits[%s]", name))
		}
	}
	for name := range r.Requests {
		if _, limited := r.Limits[name]; !limited && !built(name) {
			refused = append(refused, fmt.Sprintf(".requests[%s]", name))
		}
	}
	return refused
}

func builtResource(name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}
