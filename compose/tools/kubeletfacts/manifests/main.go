// Command manifests writes what the pinned kubelet makes of static pod manifests.
//
// Its first argument is a folder of manifests, and its second is the file to write. The kubelet's own file source
// reads the manifests from /tmp/kubelet-manifests on a node named node-a, because both are part of the UIDs. The
// tests of services/podsync/internal/sources/manifest compare microlet with the result. For another version of the kubelet,
// change go.mod and run
//
//	GOWORK=off go run ./manifests ../../../services/podsync/internal/sources/manifest/testdata/manifests ../../../services/podsync/internal/sources/manifest/testdata/kubelet.json
//
// The command adds one manifest: a Pod in which every field except times is set. Only its hash is written. It proves
// that the hash of any manifest can be computed from the public types.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/kubernetes/pkg/util/hash"
)

const (
	folder   = "/tmp/kubelet-manifests"
	nodeName = "node-a"
)

// fact is what the kubelet made of one manifest: a pod or an error.
type fact struct {
	Pod   *v1.Pod `json:"pod,omitempty"`
	Error string  `json:"error,omitempty"`
}

type facts struct {
	Manifests map[string]*fact `json:"manifests"`
	// Filled is a Pod with every field but times set, and Hash what the kubelet's hash of it is.
	Filled json.RawMessage `json:"filled"`
	Hash   string          `json:"hash"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: manifests FOLDER FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(from, to string) error {
	capabilities.Setup(true, 0) // as the kubelet does: its pods may be privileged
	all, err := read(from)
	if err != nil {
		return err
	}
	if all.Filled, all.Hash, err = filled(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(to, append(data, '\n'), 0o644)
}

// sli is the kubelet's measurement of start times, which is not wanted here.
type sli struct{}

func (sli) ObservedPodOnWatch(klog.Logger, *v1.Pod, time.Time) {}

// read lets the kubelet's file source read one manifest after the other.
func read(from string) (*facts, error) {
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, fmt.Errorf("the manifests must be read from a folder of this name: %w", err)
	}
	defer os.RemoveAll(folder)
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	all := &facts{Manifests: map[string]*fact{}}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return nil, err
		}
		if all.Manifests[e.Name()], err = one(e.Name(), data); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	return all, nil
}

func one(name string, data []byte) (*fact, error) {
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	defer os.Remove(path)
	var mu sync.Mutex
	said := ""
	log := funcr.NewJSON(func(line string) {
		var entry struct{ Error, Msg, Path string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Path == path {
			mu.Lock()
			defer mu.Unlock()
			said = entry.Error
		}
	}, funcr.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pods := config.NewPodConfig(record.NewFakeRecorder(10), sli{})
	config.NewSourceFile(log, folder, nodeName, time.Hour, pods.Channel(ctx, kubetypes.FileSource))
	select {
	case update := <-pods.Updates():
		mu.Lock()
		defer mu.Unlock()
		if len(update.Pods) == 0 {
			if said == "" {
				return nil, errors.New("the kubelet neither took it nor said why not")
			}
			return &fact{Error: said}, nil
		}
		p := update.Pods[0]
		delete(p.Annotations, kubetypes.ConfigFirstSeenAnnotationKey)
		return &fact{Pod: p}, nil
	case <-time.After(10 * time.Second):
		return nil, errors.New("the kubelet printed nothing")
	}
}

// filled makes a Pod with every field set, and its hash.
func filled() (json.RawMessage, string, error) {
	p := &v1.Pod{}
	n := 0
	fill(reflect.ValueOf(p).Elem(), &n)
	p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	p.UID = ""
	data, err := json.Marshal(p)
	if err != nil {
		return nil, "", err
	}
	obj, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, "", err
	}
	hasher := fnv.New128a()
	hash.DeepHashObject(hasher, obj)
	fmt.Fprintf(hasher, "host:%s", types.NodeName(nodeName))
	fmt.Fprintf(hasher, "file:%s", filepath.Join(folder, "filled"))
	return data, hex.EncodeToString(hasher.Sum(nil)), nil
}

// fill sets everything that v holds, each to another value.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case metav1.Time:
		return // its dump holds the process's time zone: the kubelet itself hashes it differently here and there
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse(strconv.Itoa(*n) + "Mi")))
		return
	case intstr.IntOrString:
		v.Set(reflect.ValueOf(intstr.FromString("port" + strconv.Itoa(*n))))
		return
	case metav1.FieldsV1:
		v.Set(reflect.ValueOf(metav1.FieldsV1{Raw: []byte(`{"f:x":{}}`)}))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte("bytes" + strconv.Itoa(*n)))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n)
			fill(value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString(`v1.Text (v1.Pod) "` + strconv.Itoa(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(int64(*n))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n % 200))
	default:
		panic("no value for a " + v.Type().String())
	}
}
