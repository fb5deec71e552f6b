// Package runtimeclass finds the runtime handler of a pod's RuntimeClass.
//
// It reads RuntimeClasses from a watch. If the watch does not know a class yet, the package asks the API server
// before it reports the class as missing.
package runtimeclass

import (
	"context"
	"fmt"
	"time"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
)

// timeout of the question to the apiserver.
const timeout = 2 * time.Second

// Getter asks the apiserver; client-go's RuntimeClassInterface is one.
type Getter interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*nodev1.RuntimeClass, error)
}

// Finder finds handlers. Getter may be nil: then the watch alone is believed.
type Finder struct {
	Lister nodelisters.RuntimeClassLister
	Getter Getter
}

// Handler returns the handler of a class. No class, and the class "", is the runtime's
// default handler "". A class that does not exist is the API's NotFound error.
func (f Finder) Handler(ctx context.Context, class *string) (string, error) {
	if class == nil || *class == "" {
		return "", nil
	}
	found, err := f.Lister.Get(*class)
	if apierrors.IsNotFound(err) && f.Getter != nil {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if asked, askErr := f.Getter.Get(ctx, *class, metav1.GetOptions{}); askErr == nil {
			found, err = asked, nil
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return "", err
	case err != nil:
		return "", fmt.Errorf("failed to lookup RuntimeClass %s: %w", *class, err)
	}
	return found.Handler, nil
}

// Known is the handler of a class as far as it is known without asking the apiserver; a class that is not known yet
// counts as none.
func (f Finder) Known(class *string) string {
	handler, err := Finder{Lister: f.Lister}.Handler(context.Background(), class)
	if err != nil {
		return ""
	}
	return handler
}
