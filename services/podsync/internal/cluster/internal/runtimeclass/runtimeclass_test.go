package runtimeclass

import (
	"testing"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	nodelisters "k8s.io/client-go/listers/node/v1"
	"k8s.io/client-go/tools/cache"
)

func class(name, handler string) *nodev1.RuntimeClass {
	return &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
}

func TestHandler(t *testing.T) {
	watched := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := watched.Add(class("known", "runsc")); err != nil {
		t.Fatal(err)
	}
	f := Finder{
		Lister: nodelisters.NewRuntimeClassLister(watched),
		Getter: fake.NewClientset(class("new", "kata")).NodeV1().RuntimeClasses(),
	}
	for name, want := range map[string]string{"": "", "known": "runsc", "new": "kata"} {
		if got, err := f.Handler(t.Context(), &name); err != nil || got != want {
			t.Errorf("class %q: %q, %v", name, got, err)
		}
	}
	if got, err := f.Handler(t.Context(), nil); err != nil || got != "" {
		t.Errorf("no class: %q, %v", got, err)
	}
	missing := "missing"
	_, err := f.Handler(t.Context(), &missing)
	if !apierrors.IsNotFound(err) || err.Error() != `runtimeclass.node.k8s.io "missing" not found` {
		t.Errorf("a class that is not there: %v", err)
	}
	f.Getter = nil
	fresh := "new"
	if _, err := f.Handler(t.Context(), &fresh); !apierrors.IsNotFound(err) {
		t.Errorf("without an apiserver to ask: %v", err)
	}
}

func TestKnownSendsNoRequest(t *testing.T) {
	watched := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := watched.Add(class("known", "runsc")); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(class("new", "kata"))
	f := Finder{Lister: nodelisters.NewRuntimeClassLister(watched), Getter: client.NodeV1().RuntimeClasses()}
	for name, want := range map[string]string{"": "", "known": "runsc", "new": ""} {
		if got := f.Known(&name); got != want {
			t.Errorf("class %q: %q, want %q", name, got, want)
		}
	}
	if asked := client.Actions(); len(asked) != 0 {
		t.Errorf("the apiserver is asked: %v", asked)
	}
}
