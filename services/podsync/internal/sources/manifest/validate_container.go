package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containers checks all containers that start with the pod.
func (c *check) containers(spec *field.Path, volumes sets.Set[string]) {
	s := &c.pod.Spec
	if len(s.Containers) == 0 {
		c.required(spec.Child("containers"), "a pod needs at least one container")
	}
	names, ports := uniqueNames{}, sets.New[string]()
	for i := range s.Containers {
		at := spec.Child("containers").Index(i)
		c.container(at, &s.Containers[i], names, volumes, ports)
		c.lifecycle(at.Child("lifecycle"), s.Containers[i].Lifecycle)
		c.probes(at, &s.Containers[i])
		c.matchingHostPorts(at.Child("ports"), s.Containers[i].Ports)
	}
	for i := range s.InitContainers {
		init, at := &s.InitContainers[i], spec.Child("initContainers").Index(i)
		c.container(at, init, names, volumes, sets.New[string]()) // one after the other: they may share ports
		if init.RestartPolicy != nil && *init.RestartPolicy == v1.ContainerRestartPolicyAlways {
			c.lifecycle(at.Child("lifecycle"), init.Lifecycle)
			c.probes(at, init)
			continue
		}
		for name, set := range map[string]bool{
			"lifecycle": init.Lifecycle != nil, "livenessProbe": init.LivenessProbe != nil,
			"readinessProbe": init.ReadinessProbe != nil, "startupProbe": init.StartupProbe != nil,
		} {
			if set {
				c.forbidden(at.Child(name),
					"may not be set for init containers without restartPolicy=Always: remove it")
			}
		}
	}
	c.podResources(spec.Child("resources"))
}

func (c *check) container(at *field.Path, o *v1.Container, names uniqueNames, volumes, hostPorts sets.Set[string]) {
	names.take(c, at.Child("name"), o.Name)
	switch {
	case o.Image == "":
		c.required(at.Child("image"), "name the image to run")
	case strings.TrimSpace(o.Image) != o.Image:
		c.invalid(at.Child("image"), o.Image, "must not have leading or trailing whitespace")
	}
	oneOf(c, at.Child("imagePullPolicy"), o.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)
	oneOf(c, at.Child("terminationMessagePolicy"), o.TerminationMessagePolicy, v1.TerminationMessageReadFile,
		v1.TerminationMessageFallbackToLogsOnError)
	c.ports(at.Child("ports"), o.Ports, hostPorts)
	c.environment(at, o)
	c.mounts(at.Child("volumeMounts"), o, volumes)
	for i := range o.VolumeDevices {
		c.add(field.NotFound(at.Child("volumeDevices").Index(i).Child("name"), o.VolumeDevices[i].Name))
	}
	c.resources(at.Child("resources"), &o.Resources)
	c.containerSecurity(at, o.SecurityContext)
	c.restarts(at, o)
}

func (c *check) ports(list *field.Path, ports []v1.ContainerPort, hostPorts sets.Set[string]) {
	names := sets.New[string]()
	for i := range ports {
		p, at := &ports[i], list.Index(i)
		if p.Name != "" {
			c.invalid(at.Child("name"), p.Name, validation.IsValidPortName(p.Name)...)
			if names.Has(p.Name) {
				c.duplicate(at.Child("name"), p.Name)
			}
			names.Insert(p.Name)
		}
		if p.ContainerPort == 0 {
			c.required(at.Child("containerPort"), "give the port that the container listens on")
		} else {
			c.invalid(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort))...)
		}
		oneOf(c, at.Child("protocol"), p.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)
		if p.HostPort == 0 {
			continue
		}
		c.invalid(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort))...)
		taken := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
		if hostPorts.Has(taken) {
			c.duplicate(at.Child("hostPort"), taken)
		}
		hostPorts.Insert(taken)
	}
}

func (c *check) matchingHostPorts(list *field.Path, ports []v1.ContainerPort) {
	for i, p := range ports {
		if c.pod.Spec.HostNetwork && p.HostPort != p.ContainerPort {
			c.invalid(list.Index(i).Child("hostPort"), p.HostPort, "must match containerPort when hostNetwork is true")
		}
	}
}

// restarts checks when a container is started again.
func (c *check) restarts(at *field.Path, o *v1.Container) {
	const maxRules, maxCodes = 20, 255
	oneOfSet(c, at.Child("restartPolicy"), o.RestartPolicy, v1.ContainerRestartPolicyAlways,
		v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
	if rules := len(o.RestartPolicyRules); rules > 0 && o.RestartPolicy == nil {
		c.required(at.Child("restartPolicy"), "give the policy for what no rule says")
	} else if rules > maxRules {
		c.add(field.TooMany(at.Child("restartPolicyRules"), rules, maxRules))
	}
	for i, rule := range o.RestartPolicyRules {
		at := at.Child("restartPolicyRules").Index(i)
		oneOf(c, at.Child("action"), rule.Action, v1.ContainerRestartRuleActionRestart,
			v1.ContainerRestartRuleActionRestartAllContainers)
		codes := rule.ExitCodes
		if codes == nil {
			c.required(at.Child("exitCodes"), "give the exit codes that the rule is for")
			continue
		}
		oneOf(c, at.Child("exitCodes", "operator"), codes.Operator, v1.ContainerRestartRuleOnExitCodesOpIn,
			v1.ContainerRestartRuleOnExitCodesOpNotIn)
		if len(codes.Values) > maxCodes {
			c.add(field.TooMany(at.Child("exitCodes", "values"), len(codes.Values), maxCodes))
		}
	}
}

func (c *check) environment(at *field.Path, o *v1.Container) {
	for i := range o.Env {
		e, at := &o.Env[i], at.Child("env").Index(i)
		if e.Name == "" {
			c.required(at.Child("name"), "give the variable's name")
		} else {
			c.invalid(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name)...)
		}
		from := e.ValueFrom
		if from == nil {
			continue
		}
		at = at.Child("valueFrom")
		sources := 0
		for _, set := range []bool{from.FieldRef != nil, from.ResourceFieldRef != nil, from.ConfigMapKeyRef != nil,
			from.SecretKeyRef != nil, from.FileKeyRef != nil} {
			if set {
				sources++
			}
		}
		switch {
		case sources == 0:
			c.invalid(at, "",
				"must specify one of: fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef or fileKeyRef")
		case sources > 1:
			c.invalid(at, "", "may not have more than one field specified at a time")
		case e.Value != "":
			c.invalid(at, "", "may not be specified when value is not empty")
		}
		if from.FieldRef != nil {
			c.fieldRef(at.Child("fieldRef"), from.FieldRef, envFields)
		}
		if from.ResourceFieldRef != nil {
			c.resourceRef(at.Child("resourceFieldRef"), from.ResourceFieldRef, false)
		}
		if from.FileKeyRef != nil {
			c.fileRef(at.Child("fileKeyRef"), from.FileKeyRef)
		}
	}
	for i := range o.EnvFrom {
		from, at := &o.EnvFrom[i], at.Child("envFrom").Index(i)
		if from.Prefix != "" {
			c.invalid(at.Child("prefix"), from.Prefix, validation.IsRelaxedEnvVarName(from.Prefix)...)
		}
		if (from.ConfigMapRef == nil) == (from.SecretRef == nil) {
			c.invalid(at, "", "must specify one of: configMapRef or secretRef")
		}
	}
}

// fileRef checks the reference of a variable to a file of an emptyDir.
func (c *check) fileRef(at *field.Path, ref *v1.FileKeySelector) {
	if ref.Key == "" {
		c.required(at.Child("key"), "name the variable of the file")
	} else {
		c.invalid(at.Child("key"), ref.Key, validation.IsRelaxedEnvVarName(ref.Key)...)
	}
	if ref.Path == "" {
		c.required(at.Child("path"), "give the path of the file in its volume")
	}
	c.noDots(at.Child("path"), ref.Path)
	volumes := c.pod.Spec.Volumes
	i := slices.IndexFunc(volumes, func(v v1.Volume) bool { return v.Name == ref.VolumeName })
	switch {
	case ref.VolumeName == "":
		c.required(at.Child("volumeName"), "name the volume")
	case i < 0:
		c.add(field.NotFound(at.Child("volumeName"), ref.VolumeName))
	case volumes[i].EmptyDir == nil:
		c.invalid(at.Child("volumeName"), ref.VolumeName, "must be an emptyDir")
	}
}

func (c *check) mounts(list *field.Path, o *v1.Container, volumes sets.Set[string]) {
	paths := sets.New[string]()
	privileged := o.SecurityContext != nil && o.SecurityContext.Privileged != nil && *o.SecurityContext.Privileged
	for i := range o.VolumeMounts {
		m, at := &o.VolumeMounts[i], list.Index(i)
		if m.Name == "" {
			c.required(at.Child("name"), "name the volume to mount")
		}
		if !volumes.Has(m.Name) {
			c.add(field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			c.required(at.Child("mountPath"), "say where in the container the volume is to be")
		}
		if paths.Has(m.MountPath) {
			c.invalid(at.Child("mountPath"), m.MountPath, "must be unique")
		}
		paths.Insert(m.MountPath)
		if m.SubPath != "" {
			c.insidePath(list.Child("subPath"), m.SubPath)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				c.invalid(at.Child("subPathExpr"), m.SubPathExpr,
					"subPathExpr and subPath are mutually exclusive: remove one of them")
			}
			c.insidePath(list.Child("subPathExpr"), m.SubPathExpr)
		}
		if m.MountPropagation != nil {
			at := list.Child("mountPropagation")
			oneOf(c, at, *m.MountPropagation, v1.MountPropagationBidirectional, v1.MountPropagationHostToContainer,
				v1.MountPropagationNone)
			if *m.MountPropagation == v1.MountPropagationBidirectional && !privileged {
				c.forbidden(at,
					"Bidirectional is available only to privileged containers: make the container privileged or use HostToContainer")
			}
		}
		if m.RecursiveReadOnly != nil {
			at := list.Child("recursiveReadOnly")
			oneOf(c, at, *m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible,
				v1.RecursiveReadOnlyEnabled)
			if *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
				continue
			}
			if !m.ReadOnly {
				c.forbidden(at, "may only be specified when readOnly is true")
			}
			if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
				c.forbidden(at, "may only be specified when mountPropagation is None or not specified")
			}
		}
	}
}

func (c *check) probes(at *field.Path, o *v1.Container) {
	grace := "terminationGracePeriodSeconds"
	c.probe(at.Child("startupProbe"), o.StartupProbe)
	c.probe(at.Child("livenessProbe"), o.LivenessProbe)
	c.probe(at.Child("readinessProbe"), o.ReadinessProbe)
	for name, p := range map[string]*v1.Probe{"startupProbe": o.StartupProbe, "livenessProbe": o.LivenessProbe} {
		if p != nil && p.SuccessThreshold != 1 {
			c.invalid(at.Child(name, "successThreshold"), p.SuccessThreshold, "must be 1")
		}
		if p != nil && p.TerminationGracePeriodSeconds != nil && *p.TerminationGracePeriodSeconds <= 0 {
			c.invalid(at.Child(name, grace), *p.TerminationGracePeriodSeconds, "must be greater than 0")
		}
	}
	if p := o.ReadinessProbe; p != nil && p.TerminationGracePeriodSeconds != nil {
		c.invalid(at.Child("readinessProbe", grace), *p.TerminationGracePeriodSeconds,
			"must not be set for readinessProbes")
	}
}

func (c *check) probe(at *field.Path, p *v1.Probe) {
	if p == nil {
		return
	}
	c.handler(at, p.Exec, p.HTTPGet, p.TCPSocket, p.GRPC, nil)
	for name, n := range map[string]int32{
		"initialDelaySeconds": p.InitialDelaySeconds,
		"timeoutSeconds":      p.TimeoutSeconds,
		"periodSeconds":       p.PeriodSeconds,
		"successThreshold":    p.SuccessThreshold,
		"failureThreshold":    p.FailureThreshold,
	} {
		c.notNegative(at.Child(name), int64(n))
	}
}

func (c *check) lifecycle(at *field.Path, l *v1.Lifecycle) {
	if l == nil {
		return
	}
	for name, h := range map[string]*v1.LifecycleHandler{"postStart": l.PostStart, "preStop": l.PreStop} {
		if h == nil {
			continue
		}
		c.handler(at.Child(name), h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep)
	}
	switch stop, os := at.Child("stopSignal"), c.pod.Spec.OS; {
	case l.StopSignal == nil:
	case os == nil:
		c.forbidden(stop, "may not be set without spec.os.name: set it to linux")
	case os.Name == v1.Linux && !isSignal(*l.StopSignal):
		c.invalid(stop, *l.StopSignal, "must be a signal of Linux, such as SIGTERM")
	}
}

// isSignal reports whether a name is a signal of Linux, as the API has them.
func isSignal(name v1.Signal) bool {
	if offset, ok := strings.CutPrefix(string(name), "SIGRTMIN+"); ok {
		n, err := strconv.Atoi(offset)
		return err == nil && n >= 1 && n <= 15 && strconv.Itoa(n) == offset
	}
	if offset, ok := strings.CutPrefix(string(name), "SIGRTMAX-"); ok {
		n, err := strconv.Atoi(offset)
		return err == nil && n >= 1 && n <= 14 && strconv.Itoa(n) == offset
	}
	switch name {
	case "SIGCLD", "SIGIOT", "SIGPOLL", "SIGRTMIN", "SIGRTMAX":
		return true
	}
	return unix.SignalNum(string(name)) != 0
}

// handler checks that there is one, and that one.
func (c *check) handler(at *field.Path, exec *v1.ExecAction, http *v1.HTTPGetAction, tcp *v1.TCPSocketAction,
	grpc *v1.GRPCAction, sleep *v1.SleepAction) {
	count := 0
	next := func(name string) *field.Path {
		if count++; count > 1 {
			c.forbidden(at.Child(name), "may not specify more than 1 handler type: remove one of them")
		}
		return at.Child(name)
	}
	if exec != nil {
		if at := next("exec"); len(exec.Command) == 0 {
			c.required(at.Child("command"), "give the command to run")
		}
	}
	if http != nil {
		at := next("httpGet")
		c.handlerPort(at.Child("port"), http.Port)
		oneOf(c, at.Child("scheme"), http.Scheme, v1.URISchemeHTTP, v1.URISchemeHTTPS)
		for _, header := range http.HTTPHeaders {
			c.invalid(at.Child("httpHeaders"), header.Name, validation.IsHTTPHeaderName(header.Name)...)
		}
	}
	if tcp != nil {
		c.handlerPort(next("tcpSocket").Child("port"), tcp.Port)
	}
	if grpc != nil {
		c.invalid(next("grpc").Child("port"), grpc.Port, validation.IsValidPortNum(int(grpc.Port))...)
	}
	if sleep != nil {
		at := next("sleep")
		if grace := *c.pod.Spec.TerminationGracePeriodSeconds; sleep.Seconds < 0 || sleep.Seconds > max(grace, 0) {
			c.invalid(at, sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", grace))
		}
	}
	if count == 0 {
		c.required(at, "must specify a handler type: exec, httpGet, tcpSocket, or for a probe grpc")
	}
}

func (c *check) handlerPort(at *field.Path, port intstr.IntOrString) {
	if port.Type == intstr.Int {
		c.invalid(at, port.IntValue(), validation.IsValidPortNum(port.IntValue())...)
		return
	}
	c.invalid(at, port.StrVal, validation.IsValidPortName(port.StrVal)...)
}
