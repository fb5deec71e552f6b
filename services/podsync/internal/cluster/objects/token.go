package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// maxTokenAge is the age at which a token is replaced however long it is valid.
	maxTokenAge = 24 * time.Hour
	// refreshShare is the percentage of a token's life that is left when it is replaced.
	refreshShare = 20
	// refreshJitter keeps pods that started together from refreshing together.
	refreshJitter = 10 * time.Second
)

// Tokens requests service account tokens that are bound to pods, and keeps each until 80 %
// of its life or 24 hours have gone.
type Tokens struct {
	client  kubernetes.Interface
	timeout time.Duration
	log     *slog.Logger

	mu    sync.Mutex
	cache map[tokenKey]*authenticationv1.TokenRequest
}

// tokenKey is everything that makes two requests want the same token.
type tokenKey struct {
	namespace, account string
	audiences          string
	seconds            int64
	bound              authenticationv1.BoundObjectReference
	uid                types.UID
}

// NewTokens returns a manager of tokens; with a nil client every request fails.
func NewTokens(client kubernetes.Interface, o Options) *Tokens {
	o = o.withDefaults()
	return &Tokens{client: client, timeout: o.Timeout, log: o.Log, cache: map[tokenKey]*authenticationv1.TokenRequest{}}
}

// Token returns a token that serves for a while yet. When a token that is still valid
// cannot be refreshed, it is returned, and the failure is logged.
func (t *Tokens) Token(ctx context.Context, namespace, account string,
	request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	k := keyOf(namespace, account, request)
	t.mu.Lock()
	held := t.cache[k]
	t.mu.Unlock()
	if held != nil && !due(held, time.Now()) {
		return held, nil
	}
	if t.client == nil {
		return nil, errors.New("failed to fetch token: " + errStandalone.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	fresh, err := bound(ctx, func() (*authenticationv1.TokenRequest, error) {
		got, err := t.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
		if err == nil && got.Status.Token == "" { // client-go takes any object of JSON for a TokenRequest
			err = errors.New("the answer has no token")
		}
		return got, err
	})
	switch {
	case err == nil:
	case held == nil:
		return nil, fmt.Errorf("failed to fetch token: %w", err)
	case time.Now().After(held.Status.ExpirationTimestamp.Time):
		return nil, fmt.Errorf("token of service account %s/%s expired and refresh failed: %w", namespace, account, err)
	default:
		t.log.Warn("a service account token could not be refreshed and is still valid", logkey.Namespace, namespace,
			"serviceAccount", account, "expires", held.Status.ExpirationTimestamp.Time, logkey.Err, err)
		return held, nil
	}
	t.mu.Lock()
	t.cache[k] = fresh
	t.mu.Unlock()
	return fresh, nil
}

// Forget drops the tokens of a pod that is gone.
func (t *Tokens) Forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.cache {
		if k.bound.UID == pod {
			delete(t.cache, k)
		}
	}
}

// Collect drops tokens that are no longer valid. Call it each minute or so.
func (t *Tokens) Collect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for k, held := range t.cache {
		if now.After(held.Status.ExpirationTimestamp.Time) {
			delete(t.cache, k)
		}
	}
}

// due reports whether a token is to be replaced.
func due(held *authenticationv1.TokenRequest, now time.Time) bool {
	if held.Spec.ExpirationSeconds == nil { // the apiserver always sets it
		return false
	}
	life := time.Duration(*held.Spec.ExpirationSeconds) * time.Second
	expires := held.Status.ExpirationTimestamp.Time
	jitter := rand.N(refreshJitter)
	return now.After(expires.Add(-life+maxTokenAge-jitter)) || now.After(expires.Add(-life*refreshShare/100-jitter))
}

func keyOf(namespace, account string, request *authenticationv1.TokenRequest) tokenKey {
	k := tokenKey{
		namespace: namespace,
		account:   account,
		audiences: fmt.Sprintf("%q", request.Spec.Audiences),
		uid:       request.UID,
	}
	if request.Spec.ExpirationSeconds != nil {
		k.seconds = *request.Spec.ExpirationSeconds
	}
	if request.Spec.BoundObjectRef != nil {
		k.bound = *request.Spec.BoundObjectRef
	}
	return k
}
