package pullrecords

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

// Options of Records.
type Options struct {
	// RootDir is the kubelet's root folder.
	RootDir string
	// Policy is imagePullCredentialsVerificationPolicy, Allowlist preloadedImagesVerificationAllowlist.
	Policy    kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	Allowlist []string
	Log       *slog.Logger
	// Metrics are registered here; nil registers none.
	Metrics prometheus.Registerer
}

// Records are those of the node. Records are safe for concurrent use.
type Records struct {
	policy          kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	allowed         allowlist
	pulling, pulled folder
	log             *slog.Logger
	metrics         *metrics

	mu sync.Mutex
	// underway counts the pulls of an image that run.
	underway map[string]int
	// unsettled are images with a pull that has begun and has no known result, and since when.
	unsettled map[string]time.Time
	// recent are images with records that were written, or found to be right, since the images were last listed.
	recent sets.Set[string]
}

// Check reports what New would refuse of a policy.
func Check(policy kubeletv1beta1.ImagePullCredentialsVerificationPolicy, patterns []string) error {
	switch policy {
	case kubeletv1beta1.NeverVerify, kubeletv1beta1.NeverVerifyPreloadedImages, kubeletv1beta1.AlwaysVerify,
		kubeletv1beta1.NeverVerifyAllowlistedImages:
	default:
		return fmt.Errorf("unknown image pull credential verification policy: %v", policy)
	}
	_, err := newAllowlist(patterns)
	return err
}

// New returns the records. Open must have succeeded before anything else is called.
func New(o Options) (*Records, error) {
	if err := Check(o.Policy, o.Allowlist); err != nil {
		return nil, err
	}
	allowed, err := newAllowlist(o.Allowlist)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.RootDir, "image_manager")
	return &Records{
		policy: o.Policy, allowed: allowed, log: o.Log, metrics: m,
		pulling: folder(filepath.Join(dir, "pulling")), pulled: folder(filepath.Join(dir, "pulled")),
		underway: map[string]int{}, unsettled: map[string]time.Time{}, recent: sets.Set[string]{},
	}, nil
}

// Open makes the folders, and reads which pulls the predecessor has left without an end.
func (r *Records) Open() error {
	for _, f := range []folder{r.pulling, r.pulled} {
		if err := os.MkdirAll(string(f), 0o700); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	objects, err := r.pulling.list()
	if err != nil {
		r.log.Warn("records of image pulls that have begun cannot be read", logkey.Err, err)
	}
	for _, object := range objects {
		if i, ok := object.(*intent); ok {
			r.unsettled[i.Image] = time.Now()
		}
	}
	r.count()
	return nil
}

// count sets the metrics. What cannot be read counts as none, and was logged.
func (r *Records) count() {
	intents, _ := r.pulling.list()
	records, _ := r.pulled.list()
	r.metrics.intents.Set(float64(len(intents)))
	r.metrics.records.Set(float64(len(records)))
}

// Begin records that a pull begins. One of Pulled, Failed and Lost must follow.
func (r *Records) Begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.pulling.write(image, &intent{Image: image}); err != nil {
		return fmt.Errorf("failed to record image pull intent: %w", err)
	}
	r.underway[image]++
	r.count()
	return nil
}

// Pulled records that the image, which is ref now, was pulled with a credential; nil is with none.
func (r *Records) Pulled(image, ref string, auth *keyring.Auth) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(image)
	if err := r.record(image, ref, new(credentialsOf(auth))); err != nil {
		// The file in pulling stays, so the image still counts as pulled.
		r.unsettled[image] = time.Now()
		r.log.Error("an image pull cannot be recorded", "image", image, "imageRef", ref, logkey.Err, err)
		return
	}
	delete(r.unsettled, image)
	r.settle(image)
}

// Failed records that the runtime has not pulled the image.
func (r *Records) Failed(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(image)
	r.settle(image)
}

// Lost records that the end of a pull is not known: the runtime may have pulled the image.
func (r *Records) Lost(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(image)
	r.unsettled[image] = time.Now()
}

func (r *Records) end(image string) {
	if r.underway[image]--; r.underway[image] <= 0 {
		delete(r.underway, image)
	}
}

// settle removes the file in pulling if nothing needs it.
func (r *Records) settle(image string) {
	if _, unsettled := r.unsettled[image]; unsettled || r.underway[image] > 0 {
		return
	}
	if err := r.pulling.remove(image); err != nil {
		r.log.Error("the record of an image pull that has ended cannot be removed", "image", image, logkey.Err, err)
	}
	r.count()
}

// record adds credentials to the record of an image; nil is none, which makes it known as pulled.
func (r *Records) record(image, ref string, more *credentials) error {
	name, err := repositoryOf(image)
	if err != nil {
		return fmt.Errorf("invalid image name %q: %w", image, err)
	}
	r.recent.Insert(ref)
	old, err := r.find(ref)
	if err != nil {
		r.log.Warn("the record of an image is made again", "imageRef", ref, logkey.Err, err)
	}
	made := &record{ImageRef: ref, CredentialMapping: map[string]credentials{}}
	if old != nil {
		old.DeepCopyInto(made)
	}
	changed := old == nil
	if more != nil {
		known, ok := made.CredentialMapping[name]
		merged, differs := merge(known, *more)
		if made.CredentialMapping == nil {
			made.CredentialMapping = map[string]credentials{}
		}
		made.CredentialMapping[name] = merged
		changed = changed || differs || !ok
	}
	if !changed {
		return nil
	}
	made.LastUpdatedTime = metav1.Now()
	if err := r.pulled.write(ref, made); err != nil {
		return err
	}
	r.count()
	return nil
}

// find returns the record of an image, or nil.
func (r *Records) find(ref string) (*record, error) {
	object, err := r.pulled.read(ref)
	if object == nil || err != nil {
		return nil, err
	}
	found, ok := object.(*record)
	if !ok {
		return nil, fmt.Errorf("the record of image %s is a %T", ref, object)
	}
	if found.ImageRef != ref {
		return nil, nil
	}
	return found, nil
}

// MustPull reports whether a pod may use an image that is on the node as ref only after it was pulled with the pod's
// own credentials. auths are the pod's; they are asked for only if they matter, and their error is returned.
func (r *Records) MustPull(image, ref string, auths func() ([]keyring.Auth, error)) (bool, error) {
	must, result, err := r.mustPull(image, ref, auths)
	r.metrics.checks.WithLabelValues(result).Inc()
	return must, err
}

func (r *Records) mustPull(image, ref string, auths func() ([]keyring.Auth, error)) (must bool, result string,
	err error) {
	found, known, err := r.knows(image, ref)
	if err != nil {
		r.log.Error("Unable to access cache records about image pulls", "image", image, logkey.Err, err)
		return true, resultError, nil
	}
	if !r.verifies(image, known) {
		return false, resultPolicyAllowed, nil
	}
	if found == nil {
		return true, resultMustAuthenticate, nil
	}
	name, err := repositoryOf(image)
	if err != nil {
		r.log.Error("an image is pulled again because its name cannot be read", "image", image, logkey.Err, err)
		return true, resultError, nil
	}
	pulled := found.CredentialMapping[name]
	switch {
	case pulled.NodePodsAccessible:
		return false, resultRecordFound, nil
	case len(pulled.KubernetesSecrets) == 0 && len(pulled.KubernetesServiceAccounts) == 0:
		return true, resultMustAuthenticate, nil
	}
	mine, err := auths()
	if err != nil {
		return true, resultError, err
	}
	ok, learned := matches(pulled, mine)
	if !ok {
		return true, resultMustAuthenticate, nil
	}
	if learned != nil {
		r.learn(image, ref, *learned)
	}
	return false, resultRecordFound, nil
}

// learn records a secret that gives access too. If that fails, it is compared again the next time.
func (r *Records) learn(image, ref string, s secret) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.record(image, ref, &credentials{KubernetesSecrets: []secret{s}}); err != nil {
		r.log.Warn("the record of an image cannot be extended", "image", image, "imageRef", ref, logkey.Err, err)
	}
}

// knows returns the record of an image, and whether it was pulled rather than on the node before.
func (r *Records) knows(image, ref string) (found *record, known bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, err = r.find(ref)
	if err != nil || found != nil {
		return found, true, err
	}
	if _, unsettled := r.unsettled[image]; unsettled || r.underway[image] > 0 {
		return nil, true, nil
	}
	object, err := r.pulling.read(image)
	return nil, object != nil, err
}

// verifies is the policy.
func (r *Records) verifies(image string, pulled bool) bool {
	switch r.policy {
	case kubeletv1beta1.NeverVerify:
		return false
	case kubeletv1beta1.NeverVerifyPreloadedImages:
		return pulled
	case kubeletv1beta1.NeverVerifyAllowlistedImages:
		return !r.allowed.has(image)
	}
	return true
}
