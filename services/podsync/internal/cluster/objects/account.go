package objects

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Account reads the service account of a pod. Its UID must be of now, so nothing is held.
func (t *Tokens) Account(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	if t.client == nil {
		return nil, errors.New("cannot get ServiceAccounts: " + errStandalone.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	return bound(ctx, func() (*v1.ServiceAccount, error) {
		return t.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}
