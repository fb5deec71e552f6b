package kubeletconfig

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Explain turns an error of fs.Parse into a Problem with a remedy: the nearest known flag, or what the value should
// look like. Errors of another kind, such as pflag.ErrHelp, are returned as they are.
func Explain(fs *pflag.FlagSet, err error) error {
	var (
		unknown *pflag.NotExistError
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &unknown):
		p := Problem{Field: "--" + unknown.GetSpecifiedName(), Detail: "the flag is unknown", Remedy: "remove it"}
		if gone, ok := removedFlags[strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")]; ok {
			p.Detail, p.Remedy = "the kubelet has no such flag any more", gone
			return p
		}
		var names []string
		fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(unknown.GetSpecifiedName(), names); near != "" {
			p.Remedy = "did you mean --" + near + "? If not, remove it"
		}
		return p
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		p := Problem{
			Field:  "--" + f.Name,
			Value:  invalid.GetValue(),
			Detail: oneLine(invalid.Unwrap()),
			Remedy: "see --help",
		}
		if number := (*strconv.NumError)(nil); errors.As(err, &number) {
			p.Detail, p.Remedy = "the value does not fit", "write a number"
		}
		if like := example(f.Value.Type()); like != "" {
			p.Detail, p.Remedy = "the value does not fit", "write "+like
		}
		if f.Name == "manifest-url-header" {
			p.Value = "" // it may be a secret, which show masks
			p.Detail, p.Remedy = "the value does not fit", "write name:value"
		}
		return p
	case errors.As(err, &missing):
		return Problem{
			Field:  "--" + missing.GetSpecifiedName(),
			Detail: "the value is missing",
			Remedy: "write --" + missing.GetSpecifiedName() + "=" + strings.ToUpper(missing.GetFlag().Value.Type()),
		}
	}
	return err
}

// ExplainAll explains err, which fs.Parse of args has returned, and every further mistake in args. What is right is
// set on fs afterwards, some of it more than once.
func ExplainAll(fs *pflag.FlagSet, args []string, err error) error {
	var all []error
	for err != nil {
		all = append(all, Explain(fs, err))
		rest := withoutMistake(fs, args, err)
		if len(rest) == len(args) {
			break // it is of no flag
		}
		args = rest
		err = fs.Parse(args)
	}
	return errors.Join(all...)
}

// withoutMistake returns args without the flag that err is about, and without its value.
func withoutMistake(fs *pflag.FlagSet, args []string, err error) []string {
	var (
		unknown *pflag.NotExistError
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		name    string
	)
	switch {
	case errors.As(err, &unknown):
		name = unknown.GetSpecifiedName()
	case errors.As(err, &invalid):
		name = invalid.GetFlag().Name
	case errors.As(err, &missing):
		name = missing.GetSpecifiedName()
	}
	normalized := fs.GetNormalizeFunc()
	for i, arg := range args {
		written, value, inline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || normalized(fs, written) != normalized(fs, name) {
			continue
		}
		end := i + 1
		apart := !inline && end < len(args) && !strings.HasPrefix(args[end], "-")
		switch {
		case apart:
			end++
		case inline && invalid != nil && value != invalid.GetValue():
			continue // the flag is there twice, and this one is right
		}
		return slices.Concat(args[:i], args[end:])
	}
	return args
}

// removedFlags are flags of older kubelets that stand in unit files still, with what to do instead.
var removedFlags = func() map[string]string {
	const (
		cni    = "remove it: the container runtime's own configuration names the CNI plugins, since 1.24"
		docker = "remove it: it was dockershim's, which 1.24 removed"
		klog   = "remove it: since 1.26 logs go to standard error alone, which systemd keeps in the journal"
		server = "use --kubeconfig"
	)
	return map[string]string{
		"network-plugin":                         cni,
		"network-plugin-dir":                     cni,
		"network-plugin-mtu":                     cni,
		"cni-bin-dir":                            cni,
		"cni-cache-dir":                          cni,
		"cni-conf-dir":                           cni,
		"docker-endpoint":                        docker,
		"image-pull-progress-deadline":           docker,
		"experimental-dockershim-root-directory": docker,
		"add-dir-header":                         klog,
		"alsologtostderr":                        klog,
		"log-backtrace-at":                       klog,
		"log-dir":                                klog,
		"log-file":                               klog,
		"log-file-max-size":                      klog,
		"logtostderr":                            klog,
		"one-output":                             klog,
		"skip-headers":                           klog,
		"skip-log-headers":                       klog,
		"stderrthreshold":                        klog,
		"api-servers":                            server,
		"require-kubeconfig":                     "remove it: --kubeconfig alone decides about the API server",
		"allow-privileged":                       "remove it: admission in the cluster says who may be privileged",
		"cadvisor-port":                          "remove it: cAdvisor's metrics are at /metrics/cadvisor of the HTTPS API",
		"cloud-config":                           "use --cloud-provider=external and a cloud controller manager",
		"container-runtime": "remove it: every runtime is a CRI one since 1.27, and " +
			"containerRuntimeEndpoint names its socket",
		"dynamic-config-dir":          "use --config and --config-dir: configuration from the API ended with 1.24",
		"keep-terminated-pod-volumes": "remove it: the volumes of a pod that has ended are unmounted",
		"non-masquerade-cidr":         "remove it: masquerading is the network plugin's",
		"register-schedulable":        "use --register-with-taints=node.kubernetes.io/unschedulable:NoSchedule",
	}
}()

// example says what a flag of a plain type takes; types of their own explain themselves.
func example(flagType string) string {
	switch flagType {
	case "bool":
		return "true or false"
	case "int", "int32", "int64", "Level":
		return "a whole number"
	case "duration":
		return "a duration, such as 10s or 2h45m"
	case "mapStringString", "mapStringBool":
		return "key=value, joined by commas"
	}
	return ""
}
