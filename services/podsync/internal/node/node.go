// Package node provides what the API knows of this node.
//
// Until the API server answers, the Node is the one that this machine would register. A change of the addresses wakes
// all workers, because every pod status shows them.
package node

import (
	"log/slog"
	"maps"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	machine "github.com/microlet/microlet/services/podsync/internal/node/internal/capacity"
	"github.com/microlet/microlet/services/podsync/internal/node/internal/hostip"
	"github.com/microlet/microlet/services/podsync/internal/node/internal/object"
	"github.com/microlet/microlet/services/podsync/internal/node/internal/podcidr"
)

// Runtime reports what the container runtime can do.
type Runtime interface {
	SupplementalGroupsPolicy() bool
}

// Workers are woken when the addresses have changed.
type Workers interface {
	WakeAll(reason string)
}

// Options of a Node.
type Options struct {
	Name    string
	Client  kubernetes.Interface
	Kubelet *kubeletconfig.Config
	Runtime Runtime
	// PodCIDRs gets the addresses of the pods.
	PodCIDRs podcidr.Runtime
	Bus      *bus.Client
	Workers  Workers
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Node is this node.
type Node struct {
	Object  *object.Object
	HostIPs *hostip.HostIPs
	// Reference is what events about the Node refer to.
	Reference *v1.ObjectReference
	Capacity  machine.Capacity

	podCIDR    *podcidr.Updater
	standalone bool
}

// New returns what is known at podsync's start.
func New(o Options) (*Node, error) {
	capacity, err := machine.Read(o.Kubelet)
	if err != nil {
		return nil, err
	}
	n := &Node{
		Object:    object.New(o.Client, o.Name, func() *v1.Node { return o.own(capacity) }),
		Reference: eventref.Node(o.Name), Capacity: capacity, standalone: o.Kubelet.Standalone(),
	}
	// The view calls back once the bus's client runs, and so after HostIPs is set.
	reported := bus.Watch[nodestatusv1.Addresses](o.Bus, subject.Node, subject.NodeAddresses, func(string) {
		n.HostIPs.Heard()
	})
	n.HostIPs = hostip.New(hostip.Options{
		Configured:    o.Kubelet.NodeIPs(),
		ExternalCloud: o.Kubelet.ExternalCloud(),
		Reported:      func() (*nodestatusv1.Addresses, bool) { return reported.Get(subject.NodeAddresses) },
		Node:          n.Object.Node,
		Changed:       func() { o.Workers.WakeAll("addresses") },
		Refused:       o.refused(),
	})
	ranges := podcidr.Options{Configured: o.Kubelet.Kubelet.PodCIDR, Runtime: o.PodCIDRs, Log: o.Log}
	if !n.standalone {
		ranges.Node = n.Object
	}
	n.podCIDR = podcidr.New(ranges)
	return n, nil
}

// refusalLogPeriod is how often refused addresses are logged. All are counted.
const refusalLogPeriod = time.Minute

// refused accounts for addresses that were reported of this node and that it does not have.
func (o *Options) refused() func([]string) {
	count := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "microlet_podsync_node_addresses_refused_total",
		Help: "Looks at reports of the node's addresses that left some out, because neither an interface of the machine " +
			"nor the API server has them.",
	})
	o.Metrics.MustRegister(count)
	often := rate.Sometimes{First: 1, Interval: refusalLogPeriod}
	return func(ips []string) {
		count.Inc()
		often.Do(func() { o.Log.Warn("addresses were reported that this node does not have", "addresses", ips) })
	}
}

// Start has s watch the Node, if there is an apiserver.
func (n *Node) Start(s *service.Service) {
	if !n.standalone {
		s.Go("node object", n.Object.Run)
	}
	s.Go("pod CIDR", n.podCIDR.Run)
}

// own is the Node as this machine would register it, for static pods that start before the apiserver answers.
func (o *Options) own(capacity machine.Capacity) *v1.Node {
	own := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: map[string]string{
		v1.LabelHostname: o.Name, v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}}}
	maps.Copy(own.Labels, o.Kubelet.Node.NodeLabels)
	own.Spec.Taints = o.Kubelet.Kubelet.RegisterWithTaints
	own.Status.Capacity, own.Status.Allocatable = capacity.Total, capacity.Allocatable
	own.Status.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: new(o.Runtime.SupplementalGroupsPolicy())}
	return own
}
