package podsapi

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/microlet/microlet/services/internal/nodepods"
)

// Numbers of the fields in api.proto.
const (
	fieldEventType protowire.Number = 1
	fieldEventPod  protowire.Number = 2
	fieldPods      protowire.Number = 1 // of ListPodsResponse, and of GetPodResponse
)

// message is an encoded answer. It is not encoded once more by gRPC, which would take the memory of the pods twice, and
// gives its memory back piece by piece as it is written.
type message struct{ pieces mem.BufferSlice }

// codec is gRPC's own, which also takes a *message.
type codec struct{}

func (codec) Name() string { return proto.Name }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*message); ok {
		return m.pieces, nil
	}
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
}

// piece is a pod that is not encoded yet, as a field of a message.
type piece struct {
	head []byte // what comes before the pod
	pod  *v1.Pod
	size int // of both
}

func newPiece(head []byte, field protowire.Number, pod *v1.Pod) piece {
	size := pod.Size()
	head = protowire.AppendTag(head, field, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(size))
	return piece{head, pod, len(head) + size}
}

// cost is what the piece is charged. gRPC does not say when it has written a small one.
func (p *piece) cost() int64 {
	if mem.IsBelowBufferPoolingThreshold(p.size) {
		return 0
	}
	return int64(p.size)
}

// encode encodes the piece. If that fails, the caller settles its cost; else release learns when it is written.
func (p *piece) encode(release mem.BufferPool) (mem.Buffer, error) {
	data := make([]byte, p.size)
	n, err := p.pod.MarshalToSizedBuffer(data[len(p.head):])
	if err != nil || n != p.size-len(p.head) {
		return nil, fmt.Errorf("encode pod %s: %d of %d bytes: %w", p.pod.UID, n, p.size-len(p.head), err)
	}
	copy(data, p.head)
	return mem.NewBuffer(&data, release), nil
}

// onePod is the answer with one pod, or one of the list.
func onePod(p *nodepods.Pod) (piece, error) {
	pod, err := served(p)
	if err != nil {
		return piece{}, err
	}
	return newPiece(nil, fieldPods, pod), nil
}

// watched is an event. As with the kubelet, a pod that is gone has its names alone.
func watched(e event) (piece, error) {
	head := protowire.AppendTag(nil, fieldEventType, protowire.VarintType)
	head = protowire.AppendVarint(head, uint64(e.kind))
	if e.kind == podsv1alpha1.EventType_DELETED {
		gone := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.pod.Namespace, Name: e.pod.Name, UID: e.pod.UID}}
		return newPiece(head, fieldEventPod, gone), nil
	}
	pod, err := served(e.pod)
	if err != nil {
		return piece{}, err
	}
	return newPiece(head, fieldEventPod, pod), nil
}

// served is the pod with the resources that it asks for and its local status. What it points to is shared.
func served(p *nodepods.Pod) (*v1.Pod, error) {
	if p.Err != nil {
		return nil, p.Err
	}
	pod := *p.Desired
	if !p.Reported {
		pod.Status = unreported(pod.Status)
	}
	return &pod, nil
}

// unreported is the status of a pod on which podsync has not reported yet. As with the kubelet, it is that of the API
// server, except that the pod is not ready.
func unreported(s v1.PodStatus) v1.PodStatus {
	if s.Phase == "" {
		s.Phase = v1.PodPending
	}
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			c.Status, c.Reason = v1.ConditionFalse, "ContainersNotReady"
			c.Message = "Kubelet is initializing pod containers"
		}
	}
	return s
}
