package criconfig

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/utils/dump"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// ContainerHash is the kubelet's hash of what makes a running container another one: its
// name and its image. Nothing else of a container can change while it runs.
func ContainerHash(c *v1.Container) uint64 {
	// The kubelet hashes the dump of the JSON's bytes, not the bytes.
	picked, err := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	if err != nil {
		panic(err) // two strings always have a JSON form
	}
	sum := fnv.New32a()
	_, _ = fmt.Fprintf(sum, "%v", dump.ForHash(picked)) // a hash takes every byte
	return uint64(sum.Sum32())
}

func podLabels(p *v1.Pod) map[string]string {
	labels := make(map[string]string, len(p.Labels)+3)
	for k, v := range p.Labels {
		labels[k] = v
	}
	labels[kubelettypes.KubernetesPodNameLabel] = p.Name
	labels[kubelettypes.KubernetesPodNamespaceLabel] = p.Namespace
	labels[kubelettypes.KubernetesPodUIDLabel] = string(p.UID)
	return labels
}

func containerLabels(p *v1.Pod, c *v1.Container) map[string]string {
	return map[string]string{
		kubelettypes.KubernetesPodNameLabel:       p.Name,
		kubelettypes.KubernetesPodNamespaceLabel:  p.Namespace,
		kubelettypes.KubernetesPodUIDLabel:        string(p.UID),
		kubelettypes.KubernetesContainerNameLabel: c.Name,
	}
}

func containerAnnotations(p *v1.Pod, c *v1.Container, restartCount int32) (map[string]string, error) {
	annotations := map[string]string{
		pod.AnnotationHash:                     strconv.FormatUint(ContainerHash(c), 16),
		pod.AnnotationRestartCount:             strconv.Itoa(int(restartCount)),
		pod.AnnotationTerminationMessagePath:   c.TerminationMessagePath,
		pod.AnnotationTerminationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if grace := p.DeletionGracePeriodSeconds; grace != nil {
		annotations[pod.AnnotationDeletionGracePeriod] = strconv.FormatInt(*grace, 10)
	}
	if grace := p.Spec.TerminationGracePeriodSeconds; grace != nil {
		annotations[pod.AnnotationTerminationGracePeriod] = strconv.FormatInt(*grace, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		text, err := json.Marshal(c.Lifecycle.PreStop)
		if err != nil {
			return nil, fmt.Errorf("write the preStop handler of container %s: %w", c.Name, err)
		}
		annotations[pod.AnnotationPreStopHandler] = string(text)
	}
	if len(c.Ports) > 0 {
		text, err := json.Marshal(c.Ports)
		if err != nil {
			return nil, fmt.Errorf("write the ports of container %s: %w", c.Name, err)
		}
		annotations[pod.AnnotationPorts] = string(text)
	}
	return annotations, nil
}

// PodLogDir is the folder of a pod's logs below root: <namespace>_<name>_<uid>.
func PodLogDir(root, namespace, name string, uid types.UID) string {
	return filepath.Join(root, namespace+"_"+name+"_"+string(uid))
}

// LogPath is a container's log file relative to its pod's folder: <container>/<restarts>.log.
func LogPath(container string, restartCount int32) string {
	return filepath.Join(container, strconv.Itoa(int(restartCount))+".log")
}

// maxFileName is the longest file name of the usual file systems.
const maxFileName = 255

// LogLink is the name of the link that collectors follow to a container's log:
// <pod>_<namespace>_<container>-<id>.log, cut to what a file name may have.
func LogLink(dir, namespace, pod, container, id string) string {
	const suffix = ".log"
	name := pod + "_" + namespace + "_" + container + "-" + id
	return filepath.Join(dir, name[:min(len(name), maxFileName-len(suffix))]+suffix)
}

// podText names a pod as the kubelet's messages do: name_namespace(uid).
func podText(p *v1.Pod) string {
	return strings.Join([]string{p.Name, p.Namespace}, "_") + "(" + string(p.UID) + ")"
}
