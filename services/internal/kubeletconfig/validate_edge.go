package kubeletconfig

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/nodelabel"
)

// validateEdge is about the HTTPS API and what it serves.
func validateEdge(p *problems, k *kc) {
	for name, address := range map[string]string{"address": k.Address, "healthzBindAddress": k.HealthzBindAddress} {
		_, err := netip.ParseAddr(address)
		p.check(err == nil, name, address, "it is no IP address", "write one, such as 0.0.0.0")
	}
	oneOf(p, "authorization.mode", string(k.Authorization.Mode), string(kubeletv1beta1.KubeletAuthorizationModeWebhook),
		string(kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow))
	_, err := cliflag.TLSCipherSuites(k.TLSCipherSuites)
	p.check(err == nil, "tlsCipherSuites", k.TLSCipherSuites, "a name is no cipher suite",
		"write names of "+strings.Join(cliflag.TLSCipherPossibleValues(), ", "))
	_, err = cliflag.TLSVersion(k.TLSMinVersion)
	p.check(err == nil, "tlsMinVersion", k.TLSMinVersion, "it is no TLS version",
		"write one of "+strings.Join(cliflag.TLSPossibleVersions(), ", "))
	_, err = cliflag.TLSCurvePreferences(k.TLSCurvePreferences)
	p.check(err == nil, "tlsCurvePreferences", k.TLSCurvePreferences, "a number is no known curve",
		"write IANA numbers that Go supports, such as 29 for X25519")
	p.check(!k.ServerTLSBootstrap || gateEnabled(k.FeatureGates, gateRotateServerCertificate), "serverTLSBootstrap",
		true,
		"it needs the feature gate "+gateRotateServerCertificate, "turn the gate on, or remove the field")
	if query := k.EnableSystemLogQuery; query != nil && *query {
		p.check(gateEnabled(k.FeatureGates, gateNodeLogQuery), "enableSystemLogQuery", true,
			"it needs the feature gate "+gateNodeLogQuery, "turn the gate on, or remove the field")
		p.check(*k.EnableSystemLogHandler, "enableSystemLogQuery", true, "enableSystemLogHandler is false",
			"set that to true, or this to false")
	}
	validateAuthentication(p, k)
	validateTracing(p, k)
}

// validateAuthentication refuses an API in which no user could sign in, as the kubelet's start does.
func validateAuthentication(p *problems, k *kc) {
	a := &k.Authentication
	p.check(a.X509.ClientCAFile != "" || *a.Webhook.Enabled || *a.Anonymous.Enabled, "authentication", nil,
		"no authentication method configured",
		"set authentication.x509.clientCAFile, or authentication.webhook.enabled: true")
}

// validateLogging accepts the formats of the kubelet. The library knows a format only where its implementation is
// linked in, which for json is zap; the services' logs are written by log/slog.
func validateLogging(p *problems, k *kc) {
	oneOf(p, "logging.format", k.Logging.Format, "text", "json")
	p.check(k.Logging.Format != "json" || len(k.Logging.VModule) == 0, "logging.vmodule", k.Logging.VModule,
		"it works with the text format alone", "remove it, or set logging.format: text")
	p.check(k.Logging.Format != "json" || gateEnabled(k.FeatureGates, gateLoggingBeta), "logging.format", "json",
		"it needs the feature gate "+gateLoggingBeta, "turn the gate on, or write text")
	gate, err := newGate(k.FeatureGates)
	if err != nil {
		return // validateGates reports it
	}
	logging := k.Logging
	logging.Format = logsapi.DefaultLogFormat
	for _, e := range logsapi.Validate(&logging, gate, field.NewPath("logging")) {
		if e.Type == field.ErrorTypeForbidden { // only that of a feature that is off remains
			p.add(e.Field, nil, e.Detail, "turn the feature gate on, or remove the field")
			continue
		}
		p.addAll(field.ErrorList{e}, "correct the field")
	}
	for name, size := range map[string]resource.QuantityValue{
		"logging.options.json.infoBufferSize": logging.Options.JSON.InfoBufferSize,
		"logging.options.text.infoBufferSize": logging.Options.Text.InfoBufferSize,
	} {
		p.check(size.Sign() >= 0, name, size.String(), "the quantity is negative", "write 0 or more, such as 64Ki")
	}
}

// validateHiddenMetrics accepts only the version after which metrics may have been hidden.
func validateHiddenMetrics(p *problems, k *kc) {
	version := k.ShowHiddenMetricsForVersion
	p.check(version == "" || version == kubeversion.Previous, "showHiddenMetricsForVersion", version,
		"only metrics that the version before has not hidden can be shown",
		"write "+kubeversion.Previous+", or remove the field")
}

// validateNodeFlags is about the flags that no field mirrors.
func validateNodeFlags(p *problems, f *NodeFlags) {
	for key, value := range f.NodeLabels {
		pair := key + "=" + value
		for _, problem := range nodelabel.Problems(key, value) {
			p.add("--node-labels", pair, problem.Why, problem.Instead)
		}
	}
	p.check(f.RootDir != "", "--root-dir", "", "the folder is empty", "write one, such as /var/lib/kubelet")
	p.check(f.CloudProvider == "" || f.CloudProvider == "external", "--cloud-provider", f.CloudProvider,
		"the kubelet has no cloud providers of its own any more", "write external, or remove it")
	p.check(!f.ExitOnLockContention || f.LockFile != "", "--exit-on-lock-contention", true, "--lock-file is not given",
		"give it, or remove this")
	p.check((f.ImageCredentialProviderConfig == "") == (f.ImageCredentialProviderBinDir == ""),
		"--image-credential-provider-config", f.ImageCredentialProviderConfig,
		"it works only together with --image-credential-provider-bin-dir", "give both or none")
	if f.HostnameOverride != "" {
		name := strings.ToLower(strings.TrimSpace(f.HostnameOverride))
		for _, why := range utilvalidation.IsDNS1123Subdomain(name) {
			p.add("--hostname-override", f.HostnameOverride, why, "write a DNS name")
		}
	}
	validateNodeIP(p, f.NodeIP)
}

// validateNodeIP accepts one address, or one of each family that are both specified. The kubelet leaves out what it
// cannot read; a node with another address than it was given is worse than none.
func validateNodeIP(p *problems, given string) {
	_, unreadable, err := parseNodeIPs(given)
	p.check(err == nil, "--node-ip", given, fmt.Sprint(err),
		"write one address, or an IPv4 and an IPv6 address joined by a comma")
	p.check(len(unreadable) == 0, "--node-ip", given, fmt.Sprintf("%q is no IP address", strings.Join(unreadable, ",")),
		"write one address, or an IPv4 and an IPv6 address joined by a comma")
}
