//go:build long

package stats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
)

const (
	// Each replica of the loaded Deployment uses its limit, which is loadedMost times what it asks for. The autoscaler
	// wants each to use what it asks for.
	loadedRequest = "40m"
	loadedLimit   = "120m"
	loadedMost    = 3
	// figuresTime is how long figures take from a container to a decision on a busy machine: to the node's next
	// housekeeping, through two scrapes of metrics-server, to the autoscaler.
	figuresTime = 2 * scene.Patience
)

// TestAutoscaling has kubectl top, the real metrics-server and the autoscaler of the controller manager live on the
// node's figures: a Deployment under load grows, and shrinks when the load ends.
func TestAutoscaling(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	metricsServer(s)

	loaded(s)
	top(s)
	s.AwaitSlowly(figuresTime, "all replicas of the loaded Deployment", hasReplicas(s, loadedMost))
	t.Logf("it has grown: %s", decisions(s))

	var names []string
	for _, p := range s.Record.View().Pods(s.Namespace) {
		names = append(names, p.Name)
	}
	for _, name := range names {
		s.KubectlPrints("", "exec", name, "--", "touch", "/tmp/rest")
	}
	s.AwaitSlowly(figuresTime, "one replica when the load has ended", hasReplicas(s, 1))
	t.Logf("it has shrunk: %s", decisions(s))
}

// metricsServer runs metrics-server until the test ends.
func metricsServer(s *scene.Scene) {
	s.T.Helper()
	if err := s.StartMetricsServer(s.T.Context()); err != nil {
		s.T.Fatal(err)
	}
	ctx := context.WithoutCancel(s.T.Context())
	s.T.Cleanup(func() {
		if err := s.StopMetricsServer(ctx); err != nil {
			s.T.Error(err)
		}
	})
}

// loaded creates a Deployment of one replica that uses all it may, until /tmp/rest is there, and its autoscaler.
func loaded(s *scene.Scene) {
	s.T.Helper()
	ctx, meta := s.T.Context(), metav1.ObjectMeta{Name: "loaded"}
	labels := map[string]string{"app": "loaded"}
	c := scene.ShellContainer("main", "while :; do if test -e /tmp/rest; then sleep 1; fi; done")
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(loadedRequest)},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(loadedLimit)},
	}
	template := scene.PausePod("")
	template.Spec.Containers = []corev1.Container{c}
	_, err := s.API.AppsV1().Deployments(s.Namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
	// Otherwise the Deployment would replace the pods that the end of the scene deletes.
	later := context.WithoutCancel(ctx)
	s.T.Cleanup(func() {
		if err := s.API.AppsV1().Deployments(s.Namespace).Delete(later, meta.Name, metav1.DeleteOptions{}); err != nil {
			s.T.Error(err)
		}
	})
	fast := &autoscalingv2.HPAScalingRules{
		StabilizationWindowSeconds: new(int32(0)),
		Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100,
			PeriodSeconds: 1}},
	}
	_, err = s.API.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace).Create(ctx,
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: meta,
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
					Name: meta.Name},
				MinReplicas: new(int32(1)),
				MaxReplicas: loadedMost,
				Metrics: []autoscalingv2.MetricSpec{{
					Type: autoscalingv2.ResourceMetricSourceType,
					Resource: &autoscalingv2.ResourceMetricSource{
						Name: corev1.ResourceCPU,
						Target: autoscalingv2.MetricTarget{
							Type:               autoscalingv2.UtilizationMetricType,
							AverageUtilization: new(int32(100)),
						},
					},
				}},
				Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: fast, ScaleDown: fast},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		s.T.Fatal(err)
	}
}

// top waits until kubectl top has figures of the node and of the loaded pod, and judges the figures of the pod: its CPU
// time is limited, and its memory is that of a shell.
func top(s *scene.Scene) {
	s.T.Helper()
	s.AwaitSlowly(figuresTime, "kubectl top node", func() error {
		figures, err := topOf(s, "node", s.NodeName())
		if err == nil && len(figures) != 5 {
			err = fmt.Errorf("it says %v", figures)
		}
		return err
	})
	limit := resource.MustParse(loadedLimit)
	s.AwaitSlowly(figuresTime, "kubectl top pod", func() error {
		figures, err := topOf(s, "pod", "loaded-")
		if err != nil {
			return err
		}
		if len(figures) != 3 {
			return fmt.Errorf("it says %v", figures)
		}
		cpu, err := resource.ParseQuantity(figures[1])
		memory, err2 := resource.ParseQuantity(figures[2])
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if used := cpu.MilliValue(); used < limit.MilliValue()/2 || used > limit.MilliValue()*11/10 {
			return fmt.Errorf("it uses %s of CPU, and may use %s", figures[1], loadedLimit)
		}
		if memory.Value() > 64<<20 {
			return fmt.Errorf("a shell uses %s of memory", figures[2])
		}
		return nil
	})
}

// topOf returns the line of kubectl top that begins with the name.
func topOf(s *scene.Scene, kind, name string) ([]string, error) {
	out, problems, err := s.RunKubectl(nil, "top", kind, "--no-headers")
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, problems)
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, name) {
			s.T.Logf("kubectl top %s: %s", kind, strings.TrimSpace(line))
			return strings.Fields(line), nil
		}
	}
	return nil, fmt.Errorf("no figures of %s: %q %q", name, out, problems)
}

// hasReplicas checks that the Deployment has as many replicas, all of them ready.
func hasReplicas(s *scene.Scene, want int32) func() error {
	return func() error {
		d, err := s.API.AppsV1().Deployments(s.Namespace).Get(s.T.Context(), "loaded", metav1.GetOptions{})
		if err == nil && (d.Status.Replicas != want || d.Status.ReadyReplicas != want) {
			err = fmt.Errorf("%d replicas, of which %d are ready; %s", d.Status.Replicas, d.Status.ReadyReplicas, decisions(s))
		}
		return err
	}
}

// decisions is what the autoscaler thinks.
func decisions(s *scene.Scene) string {
	a, err := s.API.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace).Get(s.T.Context(), "loaded", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("desired %d", a.Status.DesiredReplicas)
	for _, m := range a.Status.CurrentMetrics {
		if m.Resource != nil && m.Resource.Current.AverageUtilization != nil {
			text += fmt.Sprintf(", average use %d %%", *m.Resource.Current.AverageUtilization)
		}
	}
	for _, c := range a.Status.Conditions {
		text += fmt.Sprintf("; %s %s %s", c.Type, c.Status, c.Message)
	}
	return text
}
