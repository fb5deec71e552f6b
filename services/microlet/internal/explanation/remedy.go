package explanation

import "strings"

// logFiles is where a container's output is on a node without a cluster.
const logFiles = "or the files in the pod's folder below podLogsDir, by default /var/log/pods"

// remedies say what to do about a reason.
var remedies = map[string]string{
	"OutOf":                      "free resources on the node, lower the pod's requests, or run it elsewhere",
	"Deferred":                   "free resources on the node, or have the pod ask for less",
	"Infeasible":                 "have the pod ask for what the message allows, or delete it and create it with that",
	"NodeAffinity":               "change the pod's node selector or affinity, or the labels of the Node",
	"NodePorts":                  "another pod of the node has the host port: change hostPort, or move one of them",
	"NodeName":                   "spec.nodeName names another node",
	"TaintToleration":            "add a toleration, or remove the taint from the Node",
	"ResourcesNotReady":          "see whether the device plugin runs, and whether resources does: microlet status",
	"UnexpectedAdmissionError":   "delete the pod when what the message names is there; its controller creates another",
	"SysctlForbidden":            "remove the sysctl from the pod, or allow it with allowedUnsafeSysctls",
	"AppArmor":                   "remove the AppArmor profile, or run the pod on a node that has AppArmor",
	"PodOSNotSupported":          "the pod is for another operating system: remove spec.os, or run it elsewhere",
	"HelperForbidden":            "it reaches for what belongs to the node agent: see docs/helpers.md",
	"Evicted":                    "the node was short of a resource: see the condition of the Node that the message names",
	"DeadlineExceeded":           "the pod ran longer than spec.activeDeadlineSeconds: raise it, or see what takes long",
	"Preempting":                 "a critical pod needed the place: run this one elsewhere",
	"NetworkNotReady":            "install the configuration of a CNI plugin where the runtime looks for it",
	"FailedToCreatePodContainer": "see the log of podsync; the cgroups of the node may be changed by another program",
	"FailedSync":                 "see the log of podsync and of the runtime",
	"FailedMount":                "create what the volume names, or correct its name, path or type in the pod",
	"FailedCreatePodSandBox":     "see the log of the runtime; often its network plugin or the runtime class is wrong",
	"ErrImagePull":               "check the image's name, the registry and imagePullSecrets",
	"ImagePullBackOff":           "check the image's name, the registry and imagePullSecrets",
	"ErrImageNeverPull":          "bring the image to the node, or set imagePullPolicy to IfNotPresent",
	"InvalidImageName":           "correct the name of the image",
	"ImageInspectError":          "see the log of the runtime",
	"CreateContainerConfigError": "correct what the message names, or create the object",
	"CreateContainerError":       "correct what the message names; the runtime refused the container",
	"RunContainerError":          "the runtime could not start the process: check command, args and the mounts",
	"StartError":                 "the runtime could not start the process: check command, args and the mounts",
	"CrashLoopBackOff":           `see what the container wrote: "kubectl logs --previous", ` + logFiles,
	"Error":                      `see what the container wrote: "kubectl logs", ` + logFiles,
	"OOMKilled":                  "raise the container's memory limit, or find out what needs the memory",
	"ContainerCannotRun":         "the runtime could not start the process: check command, args and the mounts",
	"PostStartHookError":         "correct lifecycle.postStart, or see what it needs",
	"Unhealthy":                  "check that the container listens there, and the probe's port, path and timeouts",
}

// FieldRemedy says what to do about a field that is refused.
func FieldRemedy(field string) string {
	switch {
	case strings.HasSuffix(field, ".resources.claims"), strings.HasPrefix(field, "spec.resourceClaims"):
		return "dynamic resource allocation is not built: run the pod on a node with another agent"
	case strings.Contains(field, ".resources.limits["), strings.Contains(field, ".resources.requests["):
		return "no device plugin offers it, or the scheduler has claimed it from a driver: run the pod on another node, or " +
			"remove the resource"
	}
	return "remove it from the pod, or run the pod on another node"
}

func remedy(reason string) string {
	if r, ok := remedies[reason]; ok {
		return r
	}
	if strings.HasPrefix(reason, "OutOf") { // OutOfcpu, OutOfpods, …
		return remedies["OutOf"]
	}
	return ""
}
