package manifest

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/imageref"
	"github.com/microlet/microlet/services/internal/podutil"
)

// SetDefaults sets what a manifest leaves out to what the API server of 1.37 would, with its default feature gates.
// The pod-level requests are not among them: a kubelet does not set those of a static pod either.
func SetDefaults(p *v1.Pod) {
	s := &p.Spec
	if grace := s.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		*grace = 1
	}
	for c := range podutil.Containers(s) {
		requestLimits(&c.Resources)
		if s.HostNetwork {
			takeHostPorts(c.Ports)
		}
	}
	orElse(&s.EnableServiceLinks, new(true))
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	orElse(&s.DNSPolicy, v1.DNSClusterFirst)
	orElse(&s.RestartPolicy, v1.RestartPolicyAlways)
	orElse(&s.SecurityContext, &v1.PodSecurityContext{})
	orElse(&s.TerminationGracePeriodSeconds, new(int64(v1.DefaultTerminationGracePeriodSeconds)))
	orElse(&s.SchedulerName, v1.DefaultSchedulerName)
	for i := range s.Volumes {
		if source := &s.Volumes[i].VolumeSource; *source == (v1.VolumeSource{}) {
			source.EmptyDir = &v1.EmptyDirVolumeSource{}
		}
	}
	status := &p.Status
	if status.PodIP != "" && (len(status.PodIPs) == 0 || status.PodIPs[0].IP != status.PodIP) {
		status.PodIPs = []v1.PodIP{{IP: status.PodIP}}
	} else if len(status.PodIPs) > 0 {
		status.PodIP = status.PodIPs[0].IP
	}
	everywhere(reflect.ValueOf(p))
}

func requestLimits(r *v1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = v1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; !set {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

func takeHostPorts(ports []v1.ContainerPort) {
	for i := range ports {
		orElse(&ports[i].HostPort, ports[i].ContainerPort)
	}
}

func orElse[T comparable](field *T, value T) {
	var none T
	if *field == none {
		*field = value
	}
}

// everywhere sets what goes by a value's type, wherever in the pod it is.
func everywhere(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			byType(v.Interface())
			everywhere(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			f := v.Field(i)
			if f.CanAddr() {
				byType(f.Addr().Interface())
			}
			everywhere(f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			byType(v.Index(i).Addr().Interface())
			everywhere(v.Index(i))
		}
	}
}

func byType(at any) {
	switch o := at.(type) {
	case *v1.Container:
		defaultContainer(o.Image, &o.ImagePullPolicy, &o.TerminationMessagePath, &o.TerminationMessagePolicy)
		defaultProbes(o.LivenessProbe, o.ReadinessProbe, o.StartupProbe)
	case *v1.EphemeralContainerCommon:
		defaultContainer(o.Image, &o.ImagePullPolicy, &o.TerminationMessagePath, &o.TerminationMessagePolicy)
		defaultProbes(o.LivenessProbe, o.ReadinessProbe, o.StartupProbe)
	case *v1.ContainerPort:
		orElse(&o.Protocol, v1.ProtocolTCP)
	case *v1.ResourceList:
		roundUp(*o)
	case *v1.HTTPGetAction:
		orElse(&o.Path, "/")
		orElse(&o.Scheme, v1.URISchemeHTTP)
	case *v1.ObjectFieldSelector:
		orElse(&o.APIVersion, "v1")
	case *v1.FileKeySelector:
		orElse(&o.Optional, new(false))
	case *v1.HostPathVolumeSource:
		orElse(&o.Type, new(v1.HostPathUnset))
	case *v1.SecretVolumeSource:
		orElse(&o.DefaultMode, new(v1.SecretVolumeSourceDefaultMode))
	case *v1.ConfigMapVolumeSource:
		orElse(&o.DefaultMode, new(v1.ConfigMapVolumeSourceDefaultMode))
	case *v1.DownwardAPIVolumeSource:
		orElse(&o.DefaultMode, new(v1.DownwardAPIVolumeSourceDefaultMode))
	case *v1.ProjectedVolumeSource:
		orElse(&o.DefaultMode, new(v1.ProjectedVolumeSourceDefaultMode))
	case *v1.ServiceAccountTokenProjection:
		orElse(&o.ExpirationSeconds, new(int64(3600)))
	case *v1.ImageVolumeSource:
		orElse(&o.PullPolicy, pullPolicy(o.Reference))
	case *v1.PersistentVolumeClaimSpec:
		orElse(&o.VolumeMode, new(v1.PersistentVolumeFilesystem))
	case *v1.ISCSIVolumeSource:
		orElse(&o.ISCSIInterface, "default")
	case *v1.RBDVolumeSource:
		orElse(&o.RBDPool, "rbd")
		orElse(&o.RadosUser, "admin")
		orElse(&o.Keyring, "/etc/ceph/keyring")
	case *v1.AzureDiskVolumeSource:
		orElse(&o.CachingMode, new(v1.AzureDataDiskCachingReadWrite))
		orElse(&o.FSType, new("ext4"))
		orElse(&o.ReadOnly, new(false))
		orElse(&o.Kind, new(v1.AzureSharedBlobDisk))
	case *v1.ScaleIOVolumeSource:
		orElse(&o.StorageMode, "ThinProvisioned")
		orElse(&o.FSType, "xfs")
	}
}

func defaultContainer(image string, pull *v1.PullPolicy, path *string, policy *v1.TerminationMessagePolicy) {
	orElse(pull, pullPolicy(image))
	orElse(path, v1.TerminationMessagePathDefault)
	orElse(policy, v1.TerminationMessageReadFile)
}

// defaultProbes is not done by type: a lifecycle hook has the same handlers, without a service's name.
func defaultProbes(probes ...*v1.Probe) {
	for _, p := range probes {
		if p == nil {
			continue
		}
		orElse(&p.TimeoutSeconds, 1)
		orElse(&p.PeriodSeconds, 10)
		orElse(&p.SuccessThreshold, 1)
		orElse(&p.FailureThreshold, 3)
		if p.GRPC != nil {
			orElse(&p.GRPC.Service, new(""))
		}
	}
}

// pullPolicy goes by the image's tag: latest, or none and no digest, is pulled always.
func pullPolicy(image string) v1.PullPolicy {
	named, err := imageref.ParseNormalized(image)
	if err != nil {
		return v1.PullIfNotPresent
	}
	if named.Tag == "latest" || named.Tag == "" && named.Digest == "" {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// roundUp brings resources to thousandths, as the API keeps them.
func roundUp(list v1.ResourceList) {
	for name, quantity := range list {
		quantity.RoundUp(resource.Milli)
		list[name] = quantity
	}
}
