package grants

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/admission"
)

const (
	// allocateTimeout bounds one question. resources gives a plugin 30 s for its preference and 30 s for its answer, and
	// a pod may need several plugins. A resources that hangs is noticed by the connection earlier.
	allocateTimeout = 2 * time.Minute
	// prepareTimeout bounds the preparation of a container, for which a plugin has 30 s.
	prepareTimeout = time.Minute
	// maxAnswer bounds an answer: what a pod may be granted, and what is around it.
	maxAnswer = subject.MaxResourcesEntry + 64<<10
	// maxText bounds a text of resources in statuses and Events.
	maxText = 1024
)

// reasonUnexpected is the reason of a pod that was rejected without one.
const reasonUnexpected = "UnexpectedAdmissionError"

// Allocate asks for what the containers of a pod need. placed are the pods that have a place on the node, this one
// among them: what others hold may be given away. running says that something of the pod runs.
//
// The result admits or rejects the pod. With an error, the pod has to wait, and the text says for what.
func (g *Grants) Allocate(ctx context.Context, p *v1.Pod, placed admission.Placed,
	running bool) (admission.Result, error) {
	uids, err := g.withHolders(placed.UIDs)
	if err != nil {
		return admission.Result{}, g.waits(p, "unknown", err)
	}
	request := &resourcesv1.AllocateRequest{Running: running, PlacedAt: timestamppb.New(placed.At)}
	if request.Pod, err = p.Marshal(); err != nil {
		return admission.Result{}, fmt.Errorf("encode the pod: %w", err)
	}
	for _, uid := range uids {
		request.PlacedPodUids = append(request.PlacedPodUids, string(uid))
	}
	ctx, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	answer, err := g.client.Allocate(ctx, request, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return admission.Result{}, g.waits(p, "unavailable", g.unanswered(p, err))
	}
	switch d := answer.GetDecision().(type) {
	case *resourcesv1.AllocateResponse_Granted:
		g.granted(p.UID, d.Granted)
		return admission.Result{}, nil
	case *resourcesv1.AllocateResponse_Wait_:
		text := d.Wait.GetMessage()
		if text == "" {
			text = "waits for the device plugin of " + d.Wait.GetResource()
		}
		return admission.Result{}, g.waits(p, "waits", errors.New(short(text)))
	case *resourcesv1.AllocateResponse_Rejection_:
		g.metrics.decided("rejected")
		return rejected(d.Rejection), nil
	}
	return admission.Result{}, g.waits(p, "unavailable",
		errors.New("the service resources answered without a decision: see its version and its log"))
}

// withHolders adds, until every source of pods was heard, the pods that hold something: they may be pods of this node,
// and what they hold is theirs.
func (g *Grants) withHolders(placed []types.UID) ([]types.UID, error) {
	select {
	case <-g.workers.Synced():
		return placed, nil
	default:
	}
	if !g.pods.Synced() {
		return nil, errors.New("it is not known yet which devices other pods hold: neither has every source of pods been " +
			"read, nor the bus")
	}
	for key := range g.pods.All() {
		placed = append(placed, types.UID(key))
	}
	return placed, nil
}

// granted keeps what a pod was granted.
func (g *Grants) granted(uid types.UID, what *resourcesv1.PodResources) {
	if what == nil {
		what = &resourcesv1.PodResources{}
	}
	g.metrics.decided("granted")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers[uid] = what
	delete(g.waiting, uid)
}

// waits notes that a pod waits, and returns why.
func (g *Grants) waits(p *v1.Pod, how string, why error) error {
	g.metrics.decided(how)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[p.UID] = true
	return why
}

// unanswered says that resources could not be asked, and what for.
func (g *Grants) unanswered(p *v1.Pod, err error) error {
	var names []string
	for _, name := range g.asked(p) {
		names = append(names, string(name))
	}
	g.log.Debug("resources does not answer", logkey.PodUID, p.UID, logkey.Err, err)
	return fmt.Errorf("the service resources, which hands out %s, does not answer: %s", short(strings.Join(names, ", ")),
		plain(err))
}

func rejected(r *resourcesv1.AllocateResponse_Rejection) admission.Result {
	v := admission.Result{Reason: short(r.GetReason()), Message: short(r.GetMessage())}
	if v.Reason == "" {
		v.Reason = reasonUnexpected
	}
	return v
}

// prepare has plugins prepare the devices of a container that is about to start.
func (g *Grants) prepare(ctx context.Context, uid types.UID, container string) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	_, err := g.client.PrepareContainer(ctx, &resourcesv1.PrepareContainerRequest{
		PodUid: string(uid), Container: container,
	})
	g.metrics.prepared(err)
	if err != nil {
		return errors.New(plain(err))
	}
	return nil
}

// plain is the text of an error of a call, without the parts that change from call to call and that say nothing to the
// owner of a pod.
func plain(err error) string {
	s, _ := status.FromError(err)
	switch {
	case s.Code() == codes.Unavailable:
		return "it cannot be reached"
	case s.Code() == codes.DeadlineExceeded && strings.HasSuffix(s.Message(), context.DeadlineExceeded.Error()):
		return "it took too long"
	}
	return short(s.Message())
}

// short bounds a text, and makes valid text of it.
func short(text string) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
