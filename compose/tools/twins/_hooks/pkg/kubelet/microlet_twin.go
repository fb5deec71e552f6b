package kubelet

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfiginternal "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

// TwinCrashLoopBackOff is newCrashLoopBackOff.
func TwinCrashLoopBackOff(most time.Duration) (longest, initial time.Duration) {
	c := &kubeletconfiginternal.KubeletConfiguration{}
	c.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: most}
	return newCrashLoopBackOff(c)
}
