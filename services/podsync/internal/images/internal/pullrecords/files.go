package pullrecords

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/atomicfile"
)

type (
	intent = kubeletv1beta1.ImagePullIntent
	record = kubeletv1beta1.ImagePulledRecord
)

// The names of the kubelet's files begin with prefix; one that ends with temporary is not whole yet.
const (
	prefix    = "sha256-"
	temporary = ".tmp"
)

// codecs write v1beta1 as the kubelet does, and read v1alpha1 as well, which has the same fields. Unknown fields are
// errors.
var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		gv := kubeletv1beta1.SchemeGroupVersion
		gv.Version = version
		scheme.AddKnownTypeWithName(gv.WithKind("ImagePullIntent"), &intent{})
		scheme.AddKnownTypeWithName(gv.WithKind("ImagePulledRecord"), &record{})
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// folder has one file for each name of an image.
type folder string

func (f folder) path(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(string(f), prefix+hex.EncodeToString(sum[:]))
}

func (f folder) write(name string, object runtime.Object) error {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return fmt.Errorf("unsupported media type %q", runtime.ContentTypeJSON)
	}
	data, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, kubeletv1beta1.SchemeGroupVersion), object)
	if err != nil {
		return err
	}
	return atomicfile.Write(f.path(name), data, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1, Durable: true})
}

// read returns nil if there is no such file.
func (f folder) read(name string) (runtime.Object, error) {
	object, err := decode(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return object, err
}

func (f folder) remove(name string) error {
	if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// list returns what can be read. Its error is about the rest.
func (f folder) list() ([]runtime.Object, error) {
	entries, err := os.ReadDir(string(f))
	errs := []error{err}
	var objects []runtime.Object
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(e.Name(), prefix) || strings.HasSuffix(e.Name(), temporary) {
			continue
		}
		object, err := decode(filepath.Join(string(f), e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		objects = append(objects, object)
	}
	return objects, errors.Join(errs...)
}

func decode(path string) (runtime.Object, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	object, _, err := codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return object, nil
}
