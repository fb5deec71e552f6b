package status

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/utils/net"
)

// FamilyMismatch returns the kubelet's message if the node's primary address, which the pod's status had, is of another
// IP family now. It is empty otherwise.
func FamilyMismatch(p *v1.Pod, in Inputs, now *v1.PodStatus) string {
	before := p.Status.HostIP
	if in.Old != nil {
		before = in.Old.HostIP
	}
	was, is := utilnet.IPFamilyOfString(before), utilnet.IPFamilyOfString(now.HostIP)
	if before == "" || now.HostIP == "" || was == is {
		return ""
	}
	return fmt.Sprintf("Kubelet detected an IPv%s node IP (%s), but the cloud provider selected an IPv%s node IP (%s); "+
		"pass an explicit `--node-ip` to kubelet to fix this.", was, before, is, now.HostIP)
}
