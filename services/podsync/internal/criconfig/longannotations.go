package criconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/samemount"
)

// The runtime returns the annotations of all containers in one message with each list. Some of them have parts of the
// pod, and the API bounds only the pod as a whole. So a value of more than 8 KiB is in a file, and the container has
// the digest of the file instead. A file that is missing, or has another digest, is an error and is not used.
const (
	// LongAnnotations is the annotation with the SHA-256 digest of the file, in hexadecimal.
	LongAnnotations = "microlet.dev/long-annotations"

	// maxAnnotation is the length from which a value is in the file.
	maxAnnotation = 8 << 10
	// maxLongAnnotations is how much of a file is read. A pod of the API server has less as a whole, a static pod may have
	// more.
	maxLongAnnotations = 16 << 20

	longAnnotationsFile = "long-annotations.json"
)

// longAnnotationsPath returns the file of a container below the folder of the pods.
func longAnnotationsPath(pod types.UID, container string) string {
	return filepath.Join(string(pod), "containers", container, longAnnotationsFile)
}

// ShortenAnnotations replaces the long values among the annotations of a container with the digest of a file that it
// writes. podsDir has the folders of the pods; that of this pod must be there.
func ShortenAnnotations(podsDir string, pod types.UID, container string, annotations map[string]string) error {
	long := map[string]string{}
	for key, value := range annotations {
		if len(value) > maxAnnotation {
			long[key] = value
		}
	}
	if len(long) == 0 {
		return nil
	}
	data, err := json.Marshal(long)
	if err != nil {
		return fmt.Errorf("encode the long annotations of container %s: %w", container, err)
	}
	if len(data) > maxLongAnnotations {
		return fmt.Errorf("the preStop hook, the ports and the terminationMessagePath of container %s are too long: "+
			"they have %d bytes, at most %d are possible", container, len(data), maxLongAnnotations)
	}
	file := filepath.Join(podsDir, longAnnotationsPath(pod, container))
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return fmt.Errorf("make the folder of the long annotations of container %s: %w", container, err)
	}
	if err := atomicfile.Write(file, data, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1}); err != nil {
		return fmt.Errorf("write the long annotations of container %s: %w", container, err)
	}
	for key := range long {
		delete(annotations, key)
	}
	annotations[LongAnnotations] = digest(data)
	return nil
}

// RestoreAnnotations returns the annotations of a container with those that are in its file.
func RestoreAnnotations(podsDir string, pod types.UID, container string,
	annotations map[string]string) (map[string]string, error) {
	want, ok := annotations[LongAnnotations]
	if !ok {
		return annotations, nil
	}
	data, err := readLongAnnotations(podsDir, longAnnotationsPath(pod, container))
	if err == nil && digest(data) != want {
		err = errors.New("its digest is another one")
	}
	all := maps.Clone(annotations)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the file %s, which annotation %s names: %w",
			filepath.Join(podsDir, longAnnotationsPath(pod, container)), LongAnnotations, err)
	}
	return all, nil
}

func readLongAnnotations(podsDir, path string) ([]byte, error) {
	f, err := samemount.RegularFile(podsDir, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxLongAnnotations))
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
