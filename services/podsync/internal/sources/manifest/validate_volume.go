package manifest

import (
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/microlet/microlet/services/internal/nfsexport"
)

const maxFileMode = 0o777

// Fields of a pod that the downward API offers. What ends in a bracket takes a key.
var (
	commonFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['",
		"metadata.annotations['"}
	envFields = append([]string{
		"spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}, commonFields...)
	volumeFields = append([]string{"metadata.labels", "metadata.annotations"}, commonFields...)
)

// volumes returns the names of the pod's volumes.
func (c *check) volumes(list *field.Path) sets.Set[string] {
	names := uniqueNames{}
	for i := range c.pod.Spec.Volumes {
		v, at := &c.pod.Spec.Volumes[i], list.Index(i)
		names.take(c, at.Child("name"), v.Name)
		c.oneSource(at, &v.VolumeSource)
		switch {
		case v.EmptyDir != nil:
			if limit := v.EmptyDir.SizeLimit; limit != nil && limit.Sign() < 0 {
				c.forbidden(at.Child("emptyDir", "sizeLimit"),
					fmt.Sprintf("%s is negative: give a size, such as 1Gi", limit))
			}
		case v.HostPath != nil:
			c.hostPath(at.Child("hostPath"), v.HostPath)
		case v.DownwardAPI != nil:
			c.fileMode(at.Child("downwardAPI", "defaultMode"), v.DownwardAPI.DefaultMode)
			c.downward(at.Child("downwardAPI"), v.DownwardAPI.Items)
		case v.Projected != nil:
			c.fileMode(at.Child("projected", "defaultMode"), v.Projected.DefaultMode)
			c.projected(at.Child("projected", "sources"), v.Projected.Sources)
		case v.NFS != nil:
			c.nfs(at.Child("nfs"), v.NFS)
		case v.Image != nil:
			if v.Image.Reference == "" {
				c.required(at.Child("image", "reference"), "name the image")
			}
			oneOf(c, at.Child("image", "pullPolicy"), v.Image.PullPolicy, v1.PullAlways, v1.PullIfNotPresent,
				v1.PullNever)
		}
	}
	return sets.Set[string](names)
}

// oneSource finds a volume of more than one kind.
func (c *check) oneSource(at *field.Path, s *v1.VolumeSource) {
	v, count := reflect.ValueOf(s).Elem(), 0
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			continue
		}
		if count++; count > 1 {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			c.forbidden(at.Child(name), "may not specify more than 1 volume type: remove one of them")
		}
	}
}

func (c *check) hostPath(at *field.Path, s *v1.HostPathVolumeSource) {
	if s.Path == "" {
		c.required(at.Child("path"), "give the path on the node")
	}
	c.noDots(at.Child("path"), s.Path)
	oneOfSet(c, at.Child("type"), s.Type, v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory,
		v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)
}

func (c *check) nfs(at *field.Path, s *v1.NFSVolumeSource) {
	if s.Server == "" {
		c.required(at.Child("server"), "name the server")
	} else if err := nfsexport.CheckServer(s.Server); err != nil {
		c.invalid(at.Child("server"), s.Server, err.Error())
	}
	if s.Path == "" {
		c.required(at.Child("path"), "give the exported path")
	} else if err := nfsexport.CheckPath(s.Path); err != nil {
		c.invalid(at.Child("path"), s.Path, err.Error())
	}
}

func (c *check) fileMode(at *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > maxFileMode) {
		c.invalid(at, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}

func (c *check) downward(at *field.Path, items []v1.DownwardAPIVolumeFile) {
	for i := range items {
		item := &items[i]
		if item.Path == "" {
			c.required(at.Child("path"), "give the file's path")
		} else {
			c.insidePath(at.Child("path"), item.Path)
			if strings.HasPrefix(item.Path, "..") {
				c.invalid(at.Child("path"), item.Path, "must not start with '..'")
			}
		}
		c.fileMode(at.Child("mode"), item.Mode)
		switch {
		case item.FieldRef != nil && item.ResourceFieldRef != nil:
			c.invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		case item.FieldRef != nil:
			c.fieldRef(at.Child("fieldRef"), item.FieldRef, volumeFields)
		case item.ResourceFieldRef != nil:
			c.resourceRef(at.Child("resourceFieldRef"), item.ResourceFieldRef, true)
		default:
			c.required(at, "one of fieldRef and resourceFieldRef is required")
		}
	}
}

func (c *check) projected(list *field.Path, sources []v1.VolumeProjection) {
	paths := sets.New[string]()
	for i := range sources {
		s, at := &sources[i], list.Index(i)
		v, count := reflect.ValueOf(s).Elem(), 0
		for j := range v.NumField() {
			if !v.Field(j).IsNil() {
				count++
			}
		}
		if count != 1 {
			c.forbidden(at, "must specify exactly 1 source: give each an entry of its own")
		}
		if s.ServiceAccountToken != nil && !c.api {
			c.forbidden(at.Child("serviceAccountToken"),
				"must not be specified when serviceAccountName is not set, and static pods have none: remove it")
		}
		if s.DownwardAPI == nil {
			continue
		}
		c.downward(at.Child("downwardAPI"), s.DownwardAPI.Items)
		for _, item := range s.DownwardAPI.Items {
			if paths.Has(item.Path) {
				c.invalid(at, item.Path, "conflicting duplicate paths")
			}
			paths.Insert(item.Path)
		}
	}
}

// fieldRef checks the path of a pod's field, with its key if it takes one.
func (c *check) fieldRef(at *field.Path, ref *v1.ObjectFieldSelector, known []string) {
	at = at.Child("fieldPath")
	if ref.FieldPath == "" {
		c.required(at, "name the field, such as metadata.name")
		return
	}
	if ref.APIVersion != "v1" {
		c.invalid(at, ref.APIVersion, "apiVersion must be v1")
	}
	for _, f := range known {
		prefix, takesKey := strings.CutSuffix(f, "['")
		if !takesKey {
			if ref.FieldPath == f {
				return
			}
			continue
		}
		key, ok := strings.CutPrefix(ref.FieldPath, prefix+"['")
		if key, closed := strings.CutSuffix(key, "']"); ok && closed {
			if prefix == "metadata.annotations" {
				key = strings.ToLower(key)
			}
			c.invalid(at, key, validation.IsQualifiedName(key)...)
			return
		}
	}
	c.invalid(at, ref.FieldPath, "field label not supported: "+ref.FieldPath)
}

func (c *check) resourceRef(at *field.Path, ref *v1.ResourceFieldSelector, named bool) {
	if named && ref.ContainerName == "" {
		c.required(at.Child("containerName"), "name the container")
	}
	if ref.Resource == "" {
		c.required(at.Child("resource"), "name the resource, such as limits.cpu")
		return
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	allowed := kind == "limits" || kind == "requests"
	switch v1.ResourceName(name) {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
	default:
		allowed = allowed && hugePages(v1.ResourceName(name))
	}
	if !allowed {
		c.invalid(at.Child("resource"), ref.Resource,
			"must be limits or requests of cpu, memory, ephemeral-storage or hugepages-<size>, such as limits.cpu")
	}
	divisors := map[string][]string{
		"cpu": {"0", "1m", "1"},
	}
	allowedDivisors, ok := divisors[name]
	if !ok {
		allowedDivisors = []string{"0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi",
			"1Ei"}
	}
	for _, d := range allowedDivisors {
		if ref.Divisor.String() == d {
			return
		}
	}
	c.invalid(at.Child("divisor"), ref.Divisor.String(), "must be one of "+strings.Join(allowedDivisors, ", "))
}
