// Package node asks the other services of the node for what evictor needs done.
package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/evictor/internal/localstorage"
	"github.com/microlet/microlet/services/evictor/internal/manager"
	"github.com/microlet/microlet/services/evictor/internal/reading"
	"github.com/microlet/microlet/services/internal/outbox"
)

// criTimeout is how long the runtime may take: the loop waits for it.
const criTimeout = time.Second

// Node asks podsync and imagegc, and records Events about the Node.
type Node struct {
	podsync podsyncv1.EvictionServiceClient
	imagegc imagegcv1.ImageGCServiceClient
	events  outbox.Events
	ref     *v1.ObjectReference
}

var _ manager.Node = (*Node)(nil)

// New returns a Node; ref is what Events about it refer to.
func New(podsync, imagegc grpc.ClientConnInterface, events outbox.Events, ref *v1.ObjectReference) *Node {
	return &Node{
		podsync: podsyncv1.NewEvictionServiceClient(podsync), imagegc: imagegcv1.NewImageGCServiceClient(imagegc),
		events: events, ref: ref,
	}
}

// Evict implements manager.Node. It waits for a podsync that restarts. It shortens what podsync would refuse: a pod can
// make its message as long as it likes, by the number and the names of its containers, and must not escape by that.
func (n *Node) Evict(ctx context.Context, e manager.Eviction) (stopped bool, err error) {
	annotations := make(map[string]string, len(e.Annotations))
	for key, value := range e.Annotations {
		annotations[key] = truncate(value, podsyncv1.MaxEvictAnnotation-len(key))
	}
	resp, err := n.podsync.Evict(ctx, &podsyncv1.EvictRequest{
		PodUid: string(e.Pod.UID), Message: truncate(e.Message, podsyncv1.MaxEvictMessage),
		GracePeriodSeconds: min(e.GraceSeconds, podsyncv1.MaxEvictGracePeriodSeconds), Annotations: annotations,
		DisruptionTarget: e.Disruption, ExceededLimit: exceeded(e.Exceeded),
	}, grpc.WaitForReady(true))
	switch status.Code(err) {
	case codes.NotFound, codes.FailedPrecondition, codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented:
		return false, fmt.Errorf("%w: %w", manager.ErrRefused, err)
	}
	return err == nil && !resp.GetStopping(), err // a call that was cut off may have begun the eviction
}

func exceeded(e *localstorage.Excess) *podsyncv1.ExceededLimit {
	if e == nil {
		return nil
	}
	return &podsyncv1.ExceededLimit{EmptyDir: e.EmptyDir, Container: e.Container, UsedBytes: e.UsedBytes}
}

// truncate returns the first bytes of a text, without half a character.
func truncate(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:max(bytes, 0)], "")
}

// RemoveDeadContainers implements manager.Node.
func (n *Node) RemoveDeadContainers(ctx context.Context) error {
	_, err := n.podsync.RemoveDeadContainers(ctx, &podsyncv1.RemoveDeadContainersRequest{}, grpc.WaitForReady(true))
	return unfinished(err)
}

// DeleteUnusedImages implements manager.Node.
func (n *Node) DeleteUnusedImages(ctx context.Context) error {
	_, err := n.imagegc.DeleteUnusedImages(ctx, &imagegcv1.DeleteUnusedImagesRequest{}, grpc.WaitForReady(true))
	return unfinished(err)
}

// unfinished marks the error of a service that restarts, does not know the pods yet, or needs more time.
func unfinished(err error) error {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return fmt.Errorf("%w: %w", manager.ErrUnfinished, err)
	}
	return err
}

// ThresholdMet implements manager.Node.
func (n *Node) ThresholdMet(resource v1.ResourceName) {
	n.events.Eventf(n.ref, v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", resource)
}

// Filesystems asks the runtime, through the gateway, where images and writable layers are.
func Filesystems(cri grpc.ClientConnInterface) func(ctx context.Context) (reading.Filesystems, error) {
	images := runtimeapi.NewImageServiceClient(cri)
	return func(ctx context.Context) (reading.Filesystems, error) {
		ctx, cancel := context.WithTimeout(ctx, criTimeout)
		defer cancel()
		resp, err := images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		if err != nil {
			return reading.Filesystems{}, fmt.Errorf("ask the runtime for its filesystems: %w", err)
		}
		image, container := resp.GetImageFilesystems(), resp.GetContainerFilesystems()
		if len(image) == 0 {
			return reading.Filesystems{}, errors.New("the runtime has no filesystem of images")
		}
		if len(container) == 0 {
			container = image // as runtimes before KEP-4191
		}
		return reading.Filesystems{
			Images: image[0].GetFsId().GetMountpoint(), Containers: container[0].GetFsId().GetMountpoint(),
		}, nil
	}
}
