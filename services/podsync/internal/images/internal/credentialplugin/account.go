package credentialplugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"

	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

// Accounts gets the service accounts of pods and their tokens.
type Accounts interface {
	Account(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	Token(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (
		*authenticationv1.TokenRequest, error)
}

// identity is what a plugin gets about a pod, and the key under which its credentials are kept. It is empty for a
// plugin that gets nothing.
type identity struct {
	owner       keyring.Owner
	token       string
	annotations map[string]string
	cacheKey    string
}

// identify returns the pod's identity for a plugin with these attributes; false if the plugin is not to be asked.
func identify(ctx context.Context, accounts Accounts, t *kubeletv1.ServiceAccountTokenAttributes, pod *v1.Pod) (
	identity, bool, error) {
	name := pod.Spec.ServiceAccountName
	if t == nil || name == "" {
		return identity{}, t == nil || !*t.RequireServiceAccount, nil
	}
	account, err := accounts.Account(ctx, pod.Namespace, name)
	if err != nil {
		return identity{}, false, fmt.Errorf("failed to get service account: %w", err)
	}
	annotations, ok := annotationsOf(account, t)
	if !ok {
		return identity{}, false, nil // the account has not opted in
	}
	token, err := accounts.Token(ctx, pod.Namespace, name, &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: account.UID},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{t.ServiceAccountTokenAudience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
			},
		},
	})
	if err != nil {
		return identity{}, false, fmt.Errorf("failed to get service account token: %w", err)
	}
	id := identity{
		owner: keyring.Owner{Kind: keyring.ServiceAccount, Namespace: pod.Namespace, Name: name, UID: string(account.UID)},
		token: token.Status.Token, annotations: annotations,
	}
	key := []any{id.owner, annotations}
	if t.CacheType == kubeletv1.TokenServiceAccountTokenCacheType {
		key = append(key, hash(id.token))
	}
	id.cacheKey = encode(key)
	return id, true, nil
}

// annotationsOf returns what the plugin gets about the account; false if a required annotation is missing.
func annotationsOf(account *v1.ServiceAccount, t *kubeletv1.ServiceAccountTokenAttributes) (map[string]string, bool) {
	passed := map[string]string{}
	for _, key := range t.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, false
		}
		passed[key] = value
	}
	for _, key := range t.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			passed[key] = value
		}
	}
	return passed, true
}

// flightKey is the same for those whom one run of the plugin serves.
func (i *identity) flightKey(image string) string {
	return encode([]any{image, hash(i.token), i.annotations})
}

// encode gives different strings to different values; strings and maps of them can always be encoded.
func encode(values []any) string {
	data, _ := json.Marshal(values)
	return string(data)
}

// hash stands for a token where it must not be kept.
func hash(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
