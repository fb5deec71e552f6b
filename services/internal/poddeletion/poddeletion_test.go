package poddeletion

import (
	"context"
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// answers are an API server's.
type answers struct {
	refused, unread error
	has             types.UID
}

func (a answers) DeletePod(context.Context, string, string, types.UID) error { return a.refused }

func (a answers) GetPod(context.Context, string, string) (*v1.Pod, error) {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: a.has}}, a.unread
}

func TestDelete(t *testing.T) {
	notFound, down := apierrors.NewNotFound(v1.Resource("pods"), "p"), errors.New("down")
	// What client-go makes of an answer that is not the API server's.
	page := func(code int) error {
		return apierrors.NewGenericServerResponse(code, "", v1.Resource("pods"), "p", "a page", 0, true)
	}
	for name, c := range map[string]struct {
		api  answers
		gone bool
	}{
		"deleted":                     {answers{has: "a"}, true},
		"down":                        {answers{refused: down}, false},
		"another pod":                 {answers{refused: apierrors.NewConflict(v1.Resource("pods"), "p", nil)}, true},
		"none":                        {answers{refused: notFound, unread: notFound}, true},
		"none, and another by now":    {answers{refused: notFound, has: "b"}, true},
		"there, and not in the cache": {answers{refused: notFound, has: "a"}, false},
		"down after that":             {answers{refused: notFound, unread: down}, false},
		"a page":                      {answers{refused: page(404), unread: page(404)}, false},
		"a page after that":           {answers{refused: notFound, unread: page(404)}, false},
		"a page, and none":            {answers{refused: page(404), unread: notFound}, true},
		"a page, and no pod's fields": {answers{refused: page(404)}, false},
		"a page of a conflict":        {answers{refused: page(409)}, false},
	} {
		if err := Delete(t.Context(), c.api, "ns", "p", "a"); (err == nil) != c.gone {
			t.Errorf("%s: %v, want it to be gone: %v", name, err, c.gone)
		}
	}
}
