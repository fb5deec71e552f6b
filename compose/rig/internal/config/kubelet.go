package config

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// Kubelet is what the KubeletConfiguration depends on.
type Kubelet struct {
	RuntimeEndpoint string     // unix:///…
	CgroupDriver    string     // cgroupfs or systemd
	CgroupRoot      string     // "": the kubelet's default
	PodLogs         string     // "": the kubelet's default
	NodeIP          netip.Addr // the HTTPS API listens there, on 10250
	HealthPort      int        // on 127.0.0.1; 0: the kubelet's default
	DNS             netip.Addr
	ResolvConf      string
	ClientCA        string // who may sign in at the HTTPS API with a certificate
	PluginDir       string // of FlexVolume drivers; "": the kubelet's default
	MaxPods         int32
	StaticPods      string // the folder of static pods; may be empty
	ReadOnlyPort    int32  // the port of the API without authentication, on NodeIP; 0: none
	ForeignNodeFs   bool   // the node filesystem is not the node's own: it is never short of space
	ForeignImageFs  bool   // nor the image filesystem: no image is removed to free space on it
	ForSuite        bool   // the periods and thresholds on which upstream's suite of the node counts
	NoReviews       bool   // authenticates and authorizes by ClientCA alone, without an API server
	Anonymous       bool   // every caller may use the HTTPS API
	TraceEndpoint   string // where all traces are sent, by OTLP; "": none are
}

// Write writes the KubeletConfiguration to the file. What it does not set has
// the kubelet's default.
func (k Kubelet) Write(path string) error {
	no := false
	c := kubeletconfig.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: kubeletconfig.SchemeGroupVersion.String(),
			Kind:       "KubeletConfiguration",
		},
		ContainerRuntimeEndpoint: k.RuntimeEndpoint,
		CgroupRoot:               k.CgroupRoot,
		CgroupDriver:             k.CgroupDriver,
		FailCgroupV1:             &no, // the rig runs on machines of both kinds
		FailSwapOn:               &no, // a developer's machine has swap
		PodLogsDir:               k.PodLogs,
		Address:                  k.NodeIP.String(),
		HealthzBindAddress:       "127.0.0.1",
		ClusterDomain:            "cluster.local",
		ClusterDNS:               []string{k.DNS.String()},
		ResolverConfig:           &k.ResolvConf,
		VolumePluginDir:          k.PluginDir,
		MaxPods:                  k.MaxPods,
		StaticPodPath:            k.StaticPods,
		ReadOnlyPort:             k.ReadOnlyPort,
	}
	if k.TraceEndpoint != "" {
		c.Tracing = &tracingapi.TracingConfiguration{
			Endpoint: &k.TraceEndpoint, SamplingRatePerMillion: ptr(int32(1_000_000)),
		}
	}
	if k.ForSuite {
		c.VolumeStatsAggPeriod, c.FileCheckFrequency = period(10), period(10)
		c.EvictionPressureTransitionPeriod = period(30)
		c.EvictionHard = map[string]string{"memory.available": "250Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"}
		c.EvictionMinimumReclaim = map[string]string{"nodefs.available": "5%", "nodefs.inodesFree": "5%"}
	}
	k.ignoreForeignDisks(&c)
	if k.NoReviews {
		c.Authentication.Webhook.Enabled = &no
		c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeAlwaysAllow
	}
	if k.Anonymous {
		c.Authentication.Anonymous.Enabled = ptr(true)
	}
	c.Authentication.X509.ClientCAFile = k.ClientCA
	if k.HealthPort != 0 {
		c.HealthzPort = ptr(int32(k.HealthPort))
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
	if err != nil {
		return fmt.Errorf("write kubelet configuration: %w", err)
	}
	delete(object, "logging") // nothing is set there, and its zeros are not all recognizable
	text, err := yaml.Marshal(prune(object))
	if err != nil {
		return fmt.Errorf("write kubelet configuration: %w", err)
	}
	return write(path, text)
}

// ignoreForeignDisks sets thresholds that a filesystem of the developer's machine never meets, however full it is. The
// other thresholds are the kubelet's defaults, which a configuration that sets one has to repeat.
func (k Kubelet) ignoreForeignDisks(c *kubeletconfig.KubeletConfiguration) {
	if !k.ForeignNodeFs && !k.ForeignImageFs {
		return
	}
	c.EvictionMinimumReclaim = nil
	c.EvictionHard = map[string]string{
		"memory.available":   "100Mi",
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
	if k.ForeignNodeFs {
		c.EvictionHard["nodefs.available"], c.EvictionHard["nodefs.inodesFree"] = "0%", "0%"
	}
	if k.ForeignImageFs {
		c.EvictionHard["imagefs.available"], c.EvictionHard["imagefs.inodesFree"] = "0%", "0%"
		c.ImageGCHighThresholdPercent = ptr(int32(100))
	}
}

// prune drops what is not set: the types print an unset duration as 0s and an unset number as 0, which would read as
// settings. Settings that may be false are pointers in the types, so a false that is there was meant.
func prune(object map[string]any) map[string]any {
	for key, value := range object {
		switch v := value.(type) {
		case map[string]any:
			if object[key] = prune(v); len(v) == 0 {
				delete(object, key)
			}
		case nil:
			delete(object, key)
		case int64:
			if v == 0 {
				delete(object, key)
			}
		case string:
			if v == "" || v == "0s" {
				delete(object, key)
			}
		}
	}
	return object
}

func ptr[T any](v T) *T { return &v }

func period(seconds int) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(seconds) * time.Second}
}
