//go:build long

package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// Parameters of a StorageClass that name the secret with which volumes are published.
const (
	secretName      = "csi.storage.k8s.io/node-publish-secret-name"
	secretNamespace = "csi.storage.k8s.io/node-publish-secret-namespace"
)

// TestForeignSecrets: a claim names a secret of another namespace, in each way that there is. Only the creator of a
// StorageClass can do so. Any other user gets an error that says why, the driver gets nothing, and other pods go on.
func TestForeignSecrets(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	c := s.StartCSI()
	other := foreignNamespace(s)
	w := s.CreateSteadyPods()

	// By the annotation of a claim, as a path, and as the namespace of a class that would have claims choose it.
	byPath := class(s, "by-path", map[string]string{
		secretName: "${pvc.annotations['secret']}", secretNamespace: "${pvc.namespace}",
	})
	byClaim := class(s, "by-claim", map[string]string{
		secretName: "treasure", secretNamespace: "${pvc.annotations['secret']}",
	})
	annotated(s, "path", byPath, "../"+other+"/treasure")
	annotated(s, "namespace", byClaim, other)
	for _, name := range []string{"path", "namespace"} {
		s.CreatePods(scene.WithClaims(scene.PausePod(name), name))
	}
	claimSays(s, "path", "treasure")
	claimSays(s, "namespace", "pvc.annotations")

	// An inline volume, which cannot name the namespace of a secret.
	inline := scene.WithInline(scene.PausePod("inline"), "own")
	inline.Spec.Volumes[0].CSI.NodePublishSecretRef = &corev1.LocalObjectReference{Name: "../" + other + "/treasure"}
	_, err := s.API.CoreV1().Pods(s.Namespace).Create(t.Context(), inline, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a pod whose inline volume names the secret of another namespace: %v", err)
	}
	inline.Spec.Volumes[0].CSI.NodePublishSecretRef.Name = "treasure" // there is one, but not in this namespace
	s.CreatePods(inline)
	s.Wait(scene.Patience, "why the pod with the inline volume waits",
		waitsFor(s, "inline", "NodePublishSecretRef "+s.Namespace+"/treasure"))

	// By who makes StorageClasses, who may: first one that is not there.
	missing := class(s, "missing", map[string]string{secretName: "missing", secretNamespace: other})
	volume := c.Claim("missing", of(missing))
	s.CreatePods(scene.WithClaims(scene.PausePod("late"), "missing"))
	s.Wait(scene.Patience, "why the pod waits", waitsFor(s, "late", "NodePublishSecretRef "+other+"/missing"))
	for _, l := range c.Calls() {
		if len(l.Secrets) > 0 {
			t.Errorf("the driver got the secrets %q with %s of %s", l.Secrets, l.Method, l.Volume)
		}
	}
	secret(s, other, "missing")
	s.WaitReady(2*scene.Patience, "late")
	if l, ok := c.Called(csicalls.Publish, volume, csicalls.Line.OK); !ok || !slices.Equal(l.Secrets, []string{"key"}) {
		t.Errorf("the volume is published with the secrets %q", l.Secrets)
	}
	late := s.Record.View().Pod(s.Namespace, "late")
	names := []string{"path", "namespace", "inline", "late"}
	s.DeletePods(names...)
	s.Wait(scene.Patience, "the pods' end", s.AreGone(names...))
	s.LeavesNothing([]*corev1.Pod{late})
	c.LeavesNoVolume()
	c.DeleteClaims("path", "namespace", "missing")
	c.KeepsContract()
	w.Untouched()
	w.NodeReady()
}

// foreignNamespace makes a namespace with a secret until the test ends.
func foreignNamespace(s *scene.Scene) string {
	s.T.Helper()
	name := s.Namespace + "-other"
	namespaces := s.API.CoreV1().Namespaces()
	_, err := namespaces.Create(s.T.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		if err := namespaces.Delete(context.WithoutCancel(s.T.Context()), name, metav1.DeleteOptions{}); err != nil {
			s.T.Error(err)
		}
	})
	secret(s, name, "treasure")
	return name
}

func secret(s *scene.Scene, namespace, name string) {
	s.T.Helper()
	_, err := s.API.CoreV1().Secrets(namespace).Create(s.T.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": "value"},
	}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
}

// class makes a StorageClass of the driver until the test ends, and returns its name.
func class(s *scene.Scene, name string, parameters map[string]string) string {
	s.T.Helper()
	name = s.Namespace + "-" + name
	classes := s.API.StorageV1().StorageClasses()
	_, err := classes.Create(s.T.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: rig.CSIDriverName, Parameters: parameters,
	}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		if err := classes.Delete(context.WithoutCancel(s.T.Context()), name, metav1.DeleteOptions{}); err != nil {
			s.T.Error(err)
		}
	})
	return name
}

// of has a claim be for a volume of a class.
func of(class string) func(*corev1.PersistentVolumeClaimSpec) {
	return func(s *corev1.PersistentVolumeClaimSpec) { s.StorageClassName = &class }
}

// annotated makes a claim that names a secret, and waits for nothing.
func annotated(s *scene.Scene, name, class, secret string) {
	s.T.Helper()
	claim := scene.NewClaim(name, of(class))
	claim.Annotations = map[string]string{"secret": secret}
	_, err := s.API.CoreV1().PersistentVolumeClaims(s.Namespace).Create(s.T.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
}

// claimSays waits for an Event of a claim that says why it has no volume.
func claimSays(s *scene.Scene, claim, text string) {
	s.T.Helper()
	scene.Await(s.T, scene.Patience, "why claim "+claim+" waits", func() error {
		all, err := s.API.CoreV1().Events(s.Namespace).List(s.T.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var events []*corev1.Event
		for _, e := range all.Items {
			if e.InvolvedObject.Kind == "PersistentVolumeClaim" && e.InvolvedObject.Name == claim {
				events = append(events, &e)
			}
		}
		return says(events, "ProvisioningFailed", text)
	})
}

// waitsFor returns a condition: an Event of the pod says what its volume lacks.
func waitsFor(s *scene.Scene, pod, text string) func(record.View) error {
	return func(v record.View) error { return says(v.Events(s.Namespace, pod), "FailedMount", text) }
}

func says(events []*corev1.Event, reason, text string) error {
	var seen []string
	for _, e := range events {
		if seen = append(seen, e.Reason+": "+e.Message); e.Reason == reason && strings.Contains(e.Message, text) {
			return nil
		}
	}
	return fmt.Errorf("no Event %s with %q, only %q", reason, text, seen)
}
