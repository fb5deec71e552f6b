package manifest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/podutil"
)

// MaxBytes is how long a manifest may be, as for the kubelet.
const MaxBytes = 10 << 20

// Annotations that the node gives its pods; the kubelet's names, which its handover goes by.
const (
	HashAnnotation = "kubernetes.io/config.hash"
	SeenAnnotation = "kubernetes.io/config.seen"
)

// Origin says where a manifest came from. Path or URL goes into the UID.
type Origin struct {
	// NodeName is the name of the Node, which becomes the end of the pod's name.
	NodeName string
	// Path is the manifest's file; empty when it did not come from one.
	Path string
	// URL is what the manifest was got from, or another name of its place.
	URL string
	// Strict refuses fields that core/v1 does not have, which are dropped otherwise.
	Strict bool
	// API judges the pod as one of the API: it keeps its name, and may reference other objects.
	API bool
}

// Read reads a manifest that may be no longer than MaxBytes.
func Read(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("longer than %d bytes: split it into manifests of one pod each", MaxBytes)
	}
	return data, nil
}

// lenient and strict are made at the first use, since every process of the node has this package.
var (
	lenient = sync.OnceValue(func() runtime.Decoder { return serializer(false) })
	strict  = sync.OnceValue(func() runtime.Decoder { return serializer(true) })
)

func serializer(strict bool) runtime.Decoder {
	scheme := runtime.NewScheme()
	// Errors are impossible here: the types are compiled in.
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Pod{}, &v1.PodList{})
	metav1.AddToGroupVersion(scheme, v1.SchemeGroupVersion)
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme,
		json.SerializerOptions{Strict: strict})
}

// Parse returns the pod of a manifest that holds one.
func Parse(data []byte, from Origin) (*v1.Pod, error) {
	obj, err := decode(data, from)
	if err != nil {
		return nil, err
	}
	p, ok := obj.(*v1.Pod)
	if !ok {
		return nil, errors.New("kind is PodList: put each pod into a manifest of its own")
	}
	return p, complete(p, from)
}

// ParseAll returns the pods of a manifest that holds a Pod or a PodList.
func ParseAll(data []byte, from Origin) ([]*v1.Pod, error) {
	obj, err := decode(data, from)
	if err != nil {
		return nil, err
	}
	if p, ok := obj.(*v1.Pod); ok {
		return []*v1.Pod{p}, complete(p, from)
	}
	list := obj.(*v1.PodList)
	pods := make([]*v1.Pod, 0, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		if err := complete(p, from); err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// decode returns a *v1.Pod or a *v1.PodList.
func decode(data []byte, from Origin) (runtime.Object, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("longer than %d bytes: split it into manifests of one pod each", MaxBytes)
	}
	text, err := utilyaml.ToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("neither YAML nor JSON: %w", err)
	}
	decoder := lenient()
	if from.Strict {
		decoder = strict()
	}
	obj, kind, err := decoder.Decode(text, nil, nil)
	switch {
	case runtime.IsMissingKind(err) || runtime.IsMissingVersion(err):
		return nil, errors.New(`no apiVersion and kind: a manifest begins with "apiVersion: v1" and "kind: Pod"`)
	case runtime.IsNotRegisteredError(err):
		return nil, fmt.Errorf("%s: only pods can be run from a manifest, give apiVersion v1 and kind Pod",
			kindOf(kind))
	case err != nil:
		return nil, fmt.Errorf("not a pod: %w", misfit(err, text))
	}
	switch obj.(type) {
	case *v1.Pod, *v1.PodList:
		return obj, nil
	}
	return nil, fmt.Errorf("%s: only pods can be run from a manifest, give apiVersion v1 and kind Pod", kindOf(kind))
}

func kindOf(k *schema.GroupVersionKind) string {
	if k == nil {
		return "unknown kind"
	}
	return fmt.Sprintf("apiVersion is %q and kind is %q", k.GroupVersion(), k.Kind)
}

// complete gives the pod its defaults and its identity, and refuses what could not run.
func complete(p *v1.Pod, from Origin) error {
	p.TypeMeta = metav1.TypeMeta{}
	if p.Name == "" {
		return errors.New("metadata.name is empty: give the pod a name")
	}
	SetDefaults(p)
	if p.UID == "" {
		p.UID = uid(p, from)
	}
	if err := subject.ValidToken(string(p.UID)); err != nil {
		return fmt.Errorf("metadata.uid: %w", err)
	}
	if !from.API {
		p.Name += "-" + strings.ToLower(from.NodeName)
	}
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	p.Spec.NodeName = from.NodeName
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[HashAnnotation] = string(p.UID)
	if from.Path != "" {
		tolerateEverything(p)
	}
	p.Status.Phase = v1.PodPending
	return validate(p, from.API).ToAggregate()
}

// tolerateEverything keeps the taint manager from evicting the mirror of a pod that only the node can remove. It takes
// the place of what tolerates everything for a time.
func tolerateEverything(p *v1.Pod) {
	all := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	replaced := false
	for i := range p.Spec.Tolerations {
		if t := &p.Spec.Tolerations[i]; t.MatchToleration(&all) {
			*t, replaced = all, true
		}
	}
	if !replaced {
		p.Spec.Tolerations = append(p.Spec.Tolerations, all)
	}
}

// Annotate returns a copy of the pod that says which source it came from and when it was seen first.
func Annotate(p *v1.Pod, source, seen string) *v1.Pod {
	annotations := make(map[string]string, len(p.Annotations)+2)
	for k, v := range p.Annotations {
		annotations[k] = v
	}
	annotations[podutil.ConfigSourceAnnotation], annotations[SeenAnnotation] = source, seen
	shallow := *p
	shallow.Annotations = annotations
	return &shallow
}

// FullName distinguishes pods of different sources.
func FullName(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}
