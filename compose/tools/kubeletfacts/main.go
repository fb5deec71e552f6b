// Command kubeletfacts writes the command line, configuration defaults and feature gates of the pinned kubelet.
//
// It writes flags.json, defaults.json and gates.json to the folder of its argument. services/internal/kubeletconfig
// reads gates.json as its table of gates, and its tests compare its flags and defaults with the other two. For
// another version of the kubelet, change go.mod here and run
//
//	GOWORK=off go run . ../../../services/internal/kubeletconfig/upstream
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	_ "k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	_ "k8s.io/kubernetes/pkg/kubelet/cadvisor" // changes the default of --housekeeping-interval
)

type flagFact struct {
	Name       string `json:"name"`
	Shorthand  string `json:"shorthand,omitempty"`
	Type       string `json:"type"`
	Default    string `json:"default"`
	NoOpt      string `json:"noOptDefault,omitempty"`
	Deprecated bool   `json:"deprecated,omitempty"`
	Hidden     bool   `json:"hidden,omitempty"`
}

type gateFact struct {
	Name      string   `json:"name"`
	Default   bool     `json:"default"`
	Stage     string   `json:"stage"`
	Locked    bool     `json:"locked,omitempty"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kubeletfacts FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string) error {
	if err := logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		return fmt.Errorf("add logging gates: %w", err)
	}
	flags, err := flagFacts()
	if err != nil {
		return err
	}
	s, _, err := scheme.NewSchemeAndCodecs()
	if err != nil {
		return fmt.Errorf("scheme: %w", err)
	}
	defaults := &kubeletconfigv1beta1.KubeletConfiguration{}
	s.Default(defaults)
	return errors.Join(
		write(filepath.Join(dir, "flags.json"), flags),
		write(filepath.Join(dir, "defaults.json"), defaults),
		write(filepath.Join(dir, "gates.json"), gateFacts()),
	)
}

func flagFacts() ([]flagFact, error) {
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, fmt.Errorf("default configuration: %w", err)
	}
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	options.NewKubeletFlags().AddFlags(fs)
	options.AddKubeletConfigFlags(fs, config)
	options.AddGlobalFlags(fs)
	var facts []flagFact
	fs.VisitAll(func(f *pflag.Flag) {
		facts = append(facts,
			flagFact{f.Name, f.Shorthand, f.Value.Type(), f.DefValue, f.NoOptDefVal, f.Deprecated != "", f.Hidden})
	})
	slices.SortFunc(facts, func(a, b flagFact) int { return strings.Compare(a.Name, b.Name) })
	return facts, nil
}

func gateFacts() []gateFact {
	var facts []gateFact
	dependencies := utilfeature.DefaultMutableFeatureGate.Dependencies()
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		g := gateFact{
			Name:    string(name),
			Default: spec.Default,
			Stage:   string(spec.PreRelease),
			Locked:  spec.LockToDefault,
		}
		if g.Stage == "" {
			g.Stage = "GA"
		}
		for _, d := range dependencies[name] {
			g.DependsOn = append(g.DependsOn, string(d))
		}
		slices.Sort(g.DependsOn)
		facts = append(facts, g)
	}
	slices.SortFunc(facts, func(a, b gateFact) int { return strings.Compare(a.Name, b.Name) })
	return facts
}

func write(path string, facts any) error {
	data, err := json.MarshalIndent(facts, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
