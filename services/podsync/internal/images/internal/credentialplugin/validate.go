package credentialplugin

import (
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialsv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// cacheTypes are how the credentials that a token was good for may be kept.
var cacheTypes = sets.New(kubeletv1.ServiceAccountServiceAccountTokenCacheType,
	kubeletv1.TokenServiceAccountTokenCacheType)

// validate says what is wrong in the kubelet's words.
func validate(providers []kubeletv1.CredentialProvider, tokens bool) field.ErrorList {
	at := field.NewPath("providers")
	if len(providers) == 0 {
		return field.ErrorList{field.Required(at, "at least 1 item in plugins is required")}
	}
	var errs field.ErrorList
	for i := range providers {
		errs = append(errs, validateName(at.Child("name"), providers[i].Name)...)
		errs = append(errs, validateProvider(at, &providers[i])...)
		if providers[i].TokenAttributes != nil {
			errs = append(errs, validateTokens(at.Child("tokenAttributes"), &providers[i], tokens)...)
		}
	}
	return errs
}

// validateName refuses what would be a program outside the folder. read has seen that each name is there once.
func validateName(at *field.Path, name string) field.ErrorList {
	var errs field.ErrorList
	if strings.Contains(name, "/") {
		errs = append(errs, field.Invalid(at, name, "provider name cannot contain '/'"))
	}
	if strings.Contains(name, " ") {
		errs = append(errs, field.Invalid(at, name, "provider name cannot contain spaces"))
	}
	if name == "." || name == ".." {
		errs = append(errs, field.Invalid(at, name, fmt.Sprintf("provider name cannot be '%s'", name)))
	}
	return errs
}

func validateProvider(at *field.Path, p *kubeletv1.CredentialProvider) field.ErrorList {
	var errs field.ErrorList
	if p.APIVersion == "" {
		errs = append(errs, field.Required(at.Child("apiVersion"), ""))
	} else if _, ok := apiVersions[p.APIVersion]; !ok {
		errs = append(errs, field.NotSupported(at.Child("apiVersion"), p.APIVersion, sets.List(sets.KeySet(apiVersions))))
	}
	if len(p.MatchImages) == 0 {
		errs = append(errs, field.Required(at.Child("matchImages"), "at least 1 item in matchImages is required"))
	}
	for _, image := range p.MatchImages {
		if _, err := url.Parse("https://" + image); err != nil {
			errs = append(errs, field.Invalid(at.Child("matchImages"), image, "match image is invalid: "+err.Error()))
		}
	}
	if p.DefaultCacheDuration == nil {
		errs = append(errs, field.Required(at.Child("defaultCacheDuration"), ""))
	} else if p.DefaultCacheDuration.Duration < 0 {
		errs = append(errs, field.Invalid(at.Child("defaultCacheDuration"), p.DefaultCacheDuration,
			"must be greater than or equal to 0"))
	}
	return errs
}

func validateTokens(at *field.Path, p *kubeletv1.CredentialProvider, enabled bool) field.ErrorList {
	var errs field.ErrorList
	t, requiredAt := p.TokenAttributes, at.Child("requiredServiceAccountAnnotationKeys")
	if !enabled {
		errs = append(errs, field.Forbidden(at, "tokenAttributes is not supported when "+
			"KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"))
	}
	if t.ServiceAccountTokenAudience == "" {
		errs = append(errs, field.Required(at.Child("serviceAccountTokenAudience"), ""))
	}
	if t.RequireServiceAccount == nil {
		errs = append(errs, field.Required(at.Child("requireServiceAccount"), ""))
	} else if !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		errs = append(errs, field.Forbidden(requiredAt,
			"requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"))
	}
	if version := credentialsv1.SchemeGroupVersion.String(); p.APIVersion != version {
		errs = append(errs, field.Forbidden(at,
			fmt.Sprintf("tokenAttributes is only supported for %s API version", version)))
	}
	errs = append(errs, validateKeys(requiredAt, t.RequiredServiceAccountAnnotationKeys)...)
	errs = append(errs, validateKeys(at.Child("optionalServiceAccountAnnotationKeys"),
		t.OptionalServiceAccountAnnotationKeys)...)
	both := sets.New(t.RequiredServiceAccountAnnotationKeys...).
		Intersection(sets.New(t.OptionalServiceAccountAnnotationKeys...))
	if len(both) > 0 {
		errs = append(errs, field.Invalid(at, sets.List(both), "annotation keys cannot be both required and optional"))
	}
	return append(errs, validateCacheType(at.Child("cacheType"), t.CacheType)...)
}

func validateCacheType(at *field.Path, cacheType kubeletv1.ServiceAccountTokenCacheType) field.ErrorList {
	switch {
	case cacheTypes.Has(cacheType):
		return nil
	case cacheType == "":
		return field.ErrorList{field.Required(at, "cacheType is required to be set when tokenAttributes is specified. "+
			"Supported values are: ServiceAccount, Token")}
	}
	return field.ErrorList{field.NotSupported(at, cacheType, sets.List(cacheTypes))}
}

// validateKeys takes what can be the key of an annotation.
func validateKeys(at *field.Path, keys []string) field.ErrorList {
	var errs field.ErrorList
	seen := sets.Set[string]{}
	for _, key := range keys {
		for _, why := range validation.IsQualifiedName(strings.ToLower(key)) {
			errs = append(errs, field.Invalid(at, key, why))
		}
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(at, key))
		}
		seen.Insert(key)
	}
	return errs
}
