//go:build !bench

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerPID is the pid of a container's first process, by the runtime's word.
func (n *Node) ContainerPID(container string) (int, error) {
	var info struct {
		PID int `json:"pid"`
	}
	err := n.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		got, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(got.GetInfo()["info"]), &info)
	})
	if err == nil && info.PID == 0 {
		err = fmt.Errorf("the runtime tells no pid of container %s", container)
	}
	return info.PID, err
}

// lastTime is when an event happened last.
func lastTime(e *corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if e.EventTime.After(last) {
		last = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	return last
}

func timeOf(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
