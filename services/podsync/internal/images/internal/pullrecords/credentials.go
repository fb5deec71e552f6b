package pullrecords

import (
	"cmp"
	"slices"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

type (
	credentials = kubeletv1beta1.ImagePullCredentials
	secret      = kubeletv1beta1.ImagePullSecret
	account     = kubeletv1beta1.ImagePullServiceAccount
)

// maxLearned bounds the secrets that a record learns from pods that only use the image.
const maxLearned = 100

// credentialsOf returns what a record holds of the credential that a pull succeeded with; nil is none, and an image
// that was pulled with none, or with the node's, is everyone's.
func credentialsOf(auth *keyring.Auth) credentials {
	if auth != nil {
		switch o := auth.Owner; o.Kind {
		case keyring.Secret:
			return credentials{KubernetesSecrets: []secret{secretOf(auth)}}
		case keyring.ServiceAccount:
			return credentials{KubernetesServiceAccounts: []account{accountOf(auth)}}
		}
	}
	return credentials{NodePodsAccessible: true}
}

func secretOf(auth *keyring.Auth) secret {
	o := auth.Owner
	return secret{UID: o.UID, Namespace: o.Namespace, Name: o.Name, CredentialHash: auth.Hash()}
}

func accountOf(auth *keyring.Auth) account {
	return account{UID: auth.Owner.UID, Namespace: auth.Owner.Namespace, Name: auth.Owner.Name}
}

// matches reports whether one of a pod's credentials is one that an image was pulled with: the same credential in
// whatever secret, the same secret whatever is in it now, or the same service account. learned is a secret that
// the record does not have in this form yet; nil is none.
func matches(pulled credentials, auths []keyring.Auth) (ok bool, learned *secret) {
	for i := range auths {
		if auths[i].Owner.Kind != keyring.Secret {
			continue
		}
		mine := secretOf(&auths[i])
		for _, known := range pulled.KubernetesSecrets {
			full := len(pulled.KubernetesSecrets) >= maxLearned
			sameHash := known.CredentialHash != "" && known.CredentialHash == mine.CredentialHash
			sameSecret := sameObject(known, mine)
			switch {
			case sameHash && (sameSecret || full):
				return true, nil
			case sameHash, sameSecret && !full:
				return true, &mine
			}
		}
	}
	// Of several plugins the first one's account counts, as under the kubelet. A pod has one account anyway.
	i := slices.IndexFunc(auths, func(a keyring.Auth) bool { return a.Owner.Kind == keyring.ServiceAccount })
	return i >= 0 && slices.Contains(pulled.KubernetesServiceAccounts, accountOf(&auths[i])), nil
}

func sameObject(a, b secret) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

// merge returns the credentials with those of one more pull, and whether they differ. What is everyone's stays so.
func merge(old, more credentials) (credentials, bool) {
	switch {
	case old.NodePodsAccessible:
		return old, false
	case more.NodePodsAccessible:
		return credentials{NodePodsAccessible: true}, true
	}
	merged, changed := credentials{
		KubernetesSecrets:         slices.Clone(old.KubernetesSecrets),
		KubernetesServiceAccounts: slices.Clone(old.KubernetesServiceAccounts),
	}, false
	for _, s := range more.KubernetesSecrets {
		i := slices.IndexFunc(merged.KubernetesSecrets, func(o secret) bool { return sameObject(o, s) })
		switch {
		case i < 0:
			merged.KubernetesSecrets = append(merged.KubernetesSecrets, s)
		case merged.KubernetesSecrets[i].CredentialHash != s.CredentialHash:
			merged.KubernetesSecrets[i] = s
		default:
			continue
		}
		changed = true
	}
	for _, a := range more.KubernetesServiceAccounts {
		if !slices.Contains(merged.KubernetesServiceAccounts, a) {
			merged.KubernetesServiceAccounts, changed = append(merged.KubernetesServiceAccounts, a), true
		}
	}
	slices.SortFunc(merged.KubernetesSecrets, func(a, b secret) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	slices.SortFunc(merged.KubernetesServiceAccounts, func(a, b account) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return merged, changed
}
