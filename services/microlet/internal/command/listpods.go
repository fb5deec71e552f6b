package command

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/service"
)

func newPods() *cobra.Command {
	cfg := service.DefaultConfig()
	namespace, output, again, everywhere := "", outputTable, false, false
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List the node's pods, as podsync knows them, with or without a cluster",
		Long: "List the node's pods, as podsync knows them, with or without a cluster. STATUS is that of\n" +
			"\"kubectl get pods\". \"microlet explain\" says why one is not running. Only root may ask.",
		Args: service.NoArguments,
	}
	addRuntimeDir(cmd, &cfg)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", namespace, "the pods' namespace; all of them if empty")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", everywhere, "the pods of all namespaces: the default")
	cmd.Flags().BoolVarP(&again, "watch", "w", again, "show them again every 2 s, until it is interrupted")
	addOutput(cmd, &output, outputTable, outputName)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(output, outputTable, outputName); err != nil {
			return err
		}
		if everywhere && namespace != "" {
			return fmt.Errorf("--all-namespaces is given, and --namespace=%s: leave out one of them", namespace)
		}
		show := func(ctx context.Context, w io.Writer) error {
			list, err := listPods(ctx, &cfg, namespace)
			if err != nil {
				return err
			}
			if len(list.Pods) == 0 && namespace != "" && output == outputTable {
				fmt.Fprintf(cmd.ErrOrStderr(), "no pod of this node is in namespace %s\n", namespace)
			}
			return list.show(w, output)
		}
		if again {
			return watch(cmd.Context(), cmd.OutOrStdout(), show)
		}
		return show(cmd.Context(), cmd.OutOrStdout())
	}
	return cmd
}

// show writes the list in the form that --output names.
func (l *PodList) show(w io.Writer, output string) error {
	switch output {
	case outputTable:
		return l.write(w, time.Now())
	case outputName:
		var b strings.Builder
		for _, p := range l.Pods {
			fmt.Fprintf(&b, "%s/%s\n", p.Namespace, p.Name)
		}
		_, err := io.WriteString(w, b.String())
		return err
	}
	return encodeAs(w, output, l)
}

// PodList is what "microlet pods -o json" prints.
type PodList struct {
	Pods []PodRow `json:"pods"`
	// Unsynced are the sources that have not delivered their pods yet: there may be more.
	Unsynced []string `json:"unsynced,omitempty"`
}

// PodRow is one pod of the node.
type PodRow struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Source is "api", "file", "http" or "local", which is run-pod's.
	Source string `json:"source"`
	// Status is the column STATUS of kubectl.
	Status     string     `json:"status"`
	Ready      int32      `json:"readyContainers"`
	Containers int32      `json:"containers"`
	Restarts   int32      `json:"restarts"`
	Started    *time.Time `json:"started"`
	IP         string     `json:"podIP,omitempty"`
}

// listPods asks podsync for the pods of a namespace, or of all if it is empty.
func listPods(ctx context.Context, cfg *service.Config, namespace string) (PodList, error) {
	p, err := dialPods(cfg)
	if err != nil {
		return PodList{}, err
	}
	defer func() { _ = p.close() }() // what it was for has been answered
	answer, err := askPodsync(ctx, p, &podsyncv1.ListPodsRequest{}, p.explain.ListPods)
	if err != nil {
		return PodList{}, err
	}
	list := PodList{Pods: []PodRow{}}
	for _, pod := range answer.GetPods() {
		if namespace != "" && pod.GetNamespace() != namespace {
			continue
		}
		row := PodRow{
			Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid(), Source: sourceName(pod.GetSource()),
			Status: pod.GetStatus(), Ready: pod.GetReadyContainers(), Containers: pod.GetContainers(),
			Restarts: pod.GetRestarts(), IP: pod.GetPodIp(),
		}
		if pod.GetStarted() != nil {
			started := pod.GetStarted().AsTime()
			row.Started = &started
		}
		list.Pods = append(list.Pods, row)
	}
	for _, source := range answer.GetSources() {
		if !source.GetSynced() {
			list.Unsynced = append(list.Unsynced, sourceName(source.GetSource()))
		}
	}
	return list, nil
}

func sourceName(s podsyncv1.PodSource) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "POD_SOURCE_"))
}

func (l *PodList) write(w io.Writer, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "NAMESPACE\tNAME\tREADY\tSTATUS\tRESTARTS\tAGE\tIP\tSOURCE")
	for _, p := range l.Pods {
		age, ip := "-", "-"
		if p.Started != nil {
			age = duration.HumanDuration(now.Sub(*p.Started))
		}
		if p.IP != "" {
			ip = p.IP
		}
		fmt.Fprintf(t, "%s\t%s\t%d/%d\t%s\t%d\t%s\t%s\t%s\n", p.Namespace, p.Name, p.Ready, p.Containers, p.Status,
			p.Restarts, age, ip, p.Source)
	}
	if err := t.Flush(); err != nil || len(l.Unsynced) == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "There may be more pods: %s has not delivered its list yet.\n",
		strings.Join(l.Unsynced, " and "))
	return err
}
