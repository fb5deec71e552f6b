package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestObjects is about ConfigMaps that become others while pods use them.
func TestObjects(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	t.Run("changed while pods start", changedDuringStarts)
	t.Run("immutable and created again", createdAgain)
}

// configVolume is a volume of the ConfigMap "config".
func configVolume() corev1.Volume {
	return corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "config"},
	}}}
}

// changedDuringStarts: a ConfigMap changes without a pause while fifteen pods start that mount a file of it.
func changedDuringStarts(t *testing.T) {
	s := scene.New(t)
	config(s, "config", map[string]string{"key": "0"})
	ctx, stop := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	defer changing.Wait()
	defer stop()
	changes := 0
	changing.Go(func() {
		for ; ctx.Err() == nil; changes++ {
			_, err := s.API.CoreV1().ConfigMaps(s.Namespace).Update(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string]string{"key": fmt.Sprint(changes)},
			}, metav1.UpdateOptions{})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	var pods []*corev1.Pod
	for i := range 15 {
		p := scene.ScriptPod(fmt.Sprintf("reads-%d", i), "cat /file")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Volumes = []corev1.Volume{configVolume()}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/file", SubPath: "key"}}
		pods = append(pods, p)
	}
	s.CreatePods(pods...)
	s.Wait(scene.Patience, "the pods' end", func(v record.View) error {
		var errs []error
		for _, p := range pods {
			now := v.Pod(s.Namespace, p.Name)
			if now == nil {
				errs = append(errs, fmt.Errorf("%s is not recorded yet", p.Name))
			} else if now.Status.Phase != corev1.PodSucceeded && now.Status.Phase != corev1.PodFailed {
				errs = append(errs, errors.New(scene.Describe(now)))
			}
		}
		return errors.Join(errs...)
	})
	for _, p := range pods {
		if p := s.Record.View().Pod(s.Namespace, p.Name); p.Status.Phase != corev1.PodSucceeded {
			t.Error(scene.Describe(p))
		}
	}
	stop()
	changing.Wait()
	t.Logf("%d changes", changes)
}

// createdAgain: an immutable ConfigMap is deleted and created again, and a new pod gets it as it is now.
func createdAgain(t *testing.T) {
	s := scene.New(t)
	maps := s.API.CoreV1().ConfigMaps(s.Namespace)
	create := func(value string) {
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "config"}, Immutable: new(true), Data: map[string]string{"key": value},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(name, value string) *corev1.Pod {
		p := scene.ScriptPod(name, "while sleep 0.2; do echo now: $(cat /v/key) $KEY; done")
		p.Spec.Volumes = []corev1.Volume{configVolume()}
		c := &p.Spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/v"}}
		c.Env = []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{
			ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "config"}, Key: "key",
			},
		}}}
		s.CreatePods(p)
		s.WaitReady(scene.Patience, name)
		running := s.Record.View().Pod(s.Namespace, name)
		sees(s, running, 0, scene.Patience, "now: "+value)
		return running
	}
	create("old")
	first := shows("first", "old old")
	// podsync watches an object for some seconds before it knows that it is immutable.
	scene.Await(t, scene.Patience, "four seconds of the first pod", func() error {
		text, err := s.ContainerLog(first, "main", 0)
		if lines := strings.Count(text, "\n"); err == nil && lines < 20 {
			err = fmt.Errorf("%d lines of 20", lines)
		}
		return err
	})
	if err := maps.Delete(t.Context(), "config", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create("new")
	shows("second", "new new")
	sees(s, first, 0, scene.Patience, "now: new old")
}
