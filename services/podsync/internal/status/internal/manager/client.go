package manager

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/absence"
)

// errNoDeletion is an answer to a deletion that is not the API server's.
var errNoDeletion = errors.New("the answer does not say that the pod is deleted")

// Client is what Manager needs of the apiserver.
type Client interface {
	// PatchPodStatus applies a strategic merge patch to the status subresource and returns the pod as it is then.
	PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.Pod, error)
	// DeletePod deletes at once the pod of this UID, and no other of the same name.
	DeletePod(ctx context.Context, namespace, name string, uid types.UID) error
	// GetPod is asked only after a conflict, to learn whether the pod is still the same.
	GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
}

// NewClient makes a Client of a clientset. The rate limit of the clientset then holds for status patches too.
func NewClient(c kubernetes.Interface) Client { return clientset{c} }

type clientset struct{ kubernetes.Interface }

var _ Client = clientset{}

func (c clientset) PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.Pod, error) {
	return c.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{},
		"status")
}

// DeletePod implements Client. The clientset's own deletion takes any answer of status 200 for a success.
func (c clientset) DeletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	answer, err := c.CoreV1().RESTClient().Delete().Namespace(namespace).Resource("pods").Name(name).
		Body(&metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(uid)),
		}).Do(ctx).Get()
	if err != nil {
		return err
	}
	if !absence.Deleted(answer, name, uid) {
		return errNoDeletion
	}
	return nil
}

func (c clientset) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}
