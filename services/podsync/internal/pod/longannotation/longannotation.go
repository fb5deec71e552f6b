// Package longannotation keeps the long annotations of a container in a file of its pod.
//
// The runtime returns the annotations of all containers in one message with each list. Some of them have parts of the
// pod, and the API bounds only the pod as a whole. So a value of more than 8 KiB is in a file, and the container has
// the digest of the file instead. A file that is missing, or has another digest, is an error and is not used.
package longannotation

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

const (
	// Key is the annotation with the SHA-256 digest of the file, in hexadecimal.
	Key = "microlet.dev/long-annotations"

	// maxValue is the length from which a value is in the file.
	maxValue = 8 << 10
	// maxFile is how much of a file is read. A pod of the API server has less as a whole, a static pod may have more.
	maxFile = 16 << 20

	fileName = "long-annotations.json"
)

// path returns the file of a container below the folder of the pods.
func path(pod types.UID, container string) string {
	return filepath.Join(string(pod), "containers", container, fileName)
}

// Shorten replaces the long values among the annotations of a container with the digest of a file that it writes.
// podsDir has the folders of the pods; that of this pod must be there.
func Shorten(podsDir string, pod types.UID, container string, annotations map[string]string) error {
	long := map[string]string{}
	for key, value := range annotations {
		if len(value) > maxValue {
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
	if len(data) > maxFile {
		return fmt.Errorf("the preStop hook, the ports and the terminationMessagePath of container %s are too long: "+
			"they have %d bytes, at most %d are possible", container, len(data), maxFile)
	}
	file := filepath.Join(podsDir, path(pod, container))
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return fmt.Errorf("make the folder of the long annotations of container %s: %w", container, err)
	}
	if err := atomicfile.Write(file, data, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1}); err != nil {
		return fmt.Errorf("write the long annotations of container %s: %w", container, err)
	}
	for key := range long {
		delete(annotations, key)
	}
	annotations[Key] = digest(data)
	return nil
}

// Restore returns the annotations of a container with those that are in its file.
func Restore(podsDir string, pod types.UID, container string,
	annotations map[string]string) (map[string]string, error) {
	want, ok := annotations[Key]
	if !ok {
		return annotations, nil
	}
	data, err := read(podsDir, path(pod, container))
	if err == nil && digest(data) != want {
		err = errors.New("its digest is another one")
	}
	all := maps.Clone(annotations)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the file %s, which annotation %s names: %w",
			filepath.Join(podsDir, path(pod, container)), Key, err)
	}
	return all, nil
}

func read(podsDir, path string) ([]byte, error) {
	f, err := samemount.RegularFile(podsDir, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
